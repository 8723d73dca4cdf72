//! Variants of kernels: whose they are, and that their names may be names. Which there are only the kernels know.

use super::Cx;
use crate::Role;
use crate::limits::MAX_VARIANT_NAME;
use crate::verify::error::{Errors, VerifyError};

pub(super) fn check(cx: &Cx<'_>, errors: &mut Errors) {
    let plan = cx.id;
    for (&actor, shown_name) in &cx.plan.variants {
        let Some(data) = cx.graph.actors.get(actor) else {
            let actors = cx.graph.actors.len();
            errors.push(VerifyError::VariantActor {
                plan,
                actor,
                actors,
            });
            continue;
        };

        let device = cx.plan.placement[actor];
        if data.role != Role::Compute {
            errors.push(VerifyError::VariantKernel {
                plan,
                actor,
                device,
            });
        }

        let fits_length = (1..=MAX_VARIANT_NAME).contains(&shown_name.len());
        if !fits_length
            || !shown_name
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        {
            // A hostile name may be very long.
            let shown_name = shown_name.chars().take(2 * MAX_VARIANT_NAME).collect();
            let limit = MAX_VARIANT_NAME;
            errors.push(VerifyError::VariantName {
                plan,
                actor,
                name: shown_name,
                limit,
            });
        }
    }
}
