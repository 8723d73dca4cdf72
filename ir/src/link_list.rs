//! How a machine's links are read: into exactly the room that they need.
//!
//! A machine of a thousand devices has a million links, most of what a bundle without weights takes in memory. A list
//! that doubles when it is full would take twice as much while it is read.

use std::fmt::{self, Formatter};

use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};

use crate::{Link, LinkId, TiVec};

/// Tells a deserializer that the list which follows makes its room itself, before it reads. Formats without names, as
/// that of bundles, store nothing of it.
pub(crate) const NAME: &str = "LinkList";

/// Bytes that a list of so many links takes.
pub(crate) fn list_bytes(links: usize) -> usize {
    links.saturating_mul(size_of::<Link>())
}

/// Reads the links; fails where there is no room for as many as are announced.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<TiVec<LinkId, Link>, D::Error> {
    deserializer.deserialize_newtype_struct(NAME, LinkListVisitor)
}

struct LinkListVisitor;

impl<'de> Visitor<'de> for LinkListVisitor {
    type Value = TiVec<LinkId, Link>;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of links")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let announced = access.size_hint().unwrap_or(0);
        let mut links = Vec::new();
        links
            .try_reserve_exact(announced)
            .map_err(A::Error::custom)?;
        while let Some(link) = access.next_element()? {
            links.push(link);
        }
        Ok(links.into())
    }
}
