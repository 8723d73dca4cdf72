//! Words for what a view holds: slots, channels, times in one unit.

use zbmd_ir::text::{bytes, duration};

use super::{Act, ActorView, BufferView, GateView, LoadView, PlanView, SlotView, View};

impl View {
    /// What a slot does, such as `fir[0..147]` or `fir.out[0..294] to cpu:1`.
    pub fn label(&self, plan: &PlanView, slot: &SlotView) -> String {
        let range = format!(
            "[{}..{}]",
            slot.first,
            slot.first.saturating_add(slot.count)
        );
        let ring = plan.rings.get(slot.id as usize);
        let over = |tokens: &str, arrow: &str, towards: bool| {
            ring.map_or_else(String::new, |r| {
                let device = self.device_name(if towards { r.to } else { r.from });
                format!("{}{tokens} {arrow} {device}", self.channel_name(r.channel))
            })
        };

        match slot.act {
            Act::Fire => format!("{}{range}", self.actor_label(slot.id)),
            Act::Send => over(&range, "to", true),
            Act::Recv => over(&range, "from", false),
            Act::Release => over("", "released to", false),
            Act::Carry => {
                let buffer = plan.buffers.get(slot.id as usize);
                let channel = buffer.map_or("?", |b| self.channel_name(b.channel));
                format!("history of {channel}")
            }
            Act::Fetch => format!("weights of {} from the tier", self.actor_label(slot.id)),
            Act::Await => format!("weights of {}", self.actor_label(slot.id)),
            Act::Loop => {
                format!(
                    "{} and others, {} executions",
                    self.actor_label(slot.id),
                    slot.count
                )
            }
        }
    }

    /// Name that groups slots of one kind: the actor's, or what is done to which channel.
    pub fn short_label(&self, plan: &PlanView, slot: &SlotView) -> String {
        let ring = plan
            .rings
            .get(slot.id as usize)
            .map(|r| self.channel_name(r.channel));
        let channel = match slot.act {
            Act::Fire | Act::Loop => return self.actor_label(slot.id).to_owned(),
            Act::Carry => plan
                .buffers
                .get(slot.id as usize)
                .map(|b| self.channel_name(b.channel)),
            Act::Fetch | Act::Await => Some(self.actor_label(slot.id)),
            Act::Send | Act::Recv | Act::Release => ring,
        };

        format!("{} {}", slot.act.name(), channel.unwrap_or("?"))
    }

    /// A lane's name: its device, and what it is for where that is not to compute.
    pub fn lane_name(&self, device: u32, kind: &str) -> String {
        match kind {
            "compute" => self.device_name(device).to_owned(),
            _ => format!("{} {kind}", self.device_name(device)),
        }
    }

    /// A buffer in words: its channel, places and tokens.
    pub fn buffer_label(&self, buffer: &BufferView) -> String {
        let channel = self.channels.get(buffer.channel as usize);
        let token = channel.map_or("?", |c| &c.token);
        let over = buffer
            .over
            .map(|below| format!(" over {}", self.channel_name(below)));
        let part = buffer
            .part_of
            .map(|whole| format!(" in {}", self.channel_name(whole)));
        format!(
            "{}{}{}   {} x ({} + {}) {token}",
            self.channel_name(buffer.channel),
            over.unwrap_or_default(),
            part.unwrap_or_default(),
            buffer.places,
            buffer.head_tokens,
            buffer.shown_tokens()
        )
    }

    pub(crate) fn actor_label(&self, actor: u32) -> &str {
        self.actors
            .get(actor as usize)
            .map_or("?", ActorView::shown_name)
    }

    pub(crate) fn channel_name(&self, channel: u32) -> &str {
        self.channels.get(channel as usize).map_or("?", |c| &c.name)
    }
}

impl ActorView {
    /// What people are shown: the label, or else the name.
    pub fn shown_name(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }
}

impl GateView {
    /// What a closed firing gives and does to states, as models write it: `closed: hold`, `state: zero`.
    pub(crate) fn describe_answers(&self) -> Vec<String> {
        let outputs = self
            .outputs
            .iter()
            .map(|answer| format!("closed: {answer}"));
        outputs.chain([format!("state: {}", self.states)]).collect()
    }
}

impl PlanView {
    /// End of what is drawn: the period, or the last slot if that ends later. At least 1.
    pub fn end_ns(&self) -> u64 {
        let last = self
            .lanes
            .iter()
            .filter_map(|l| l.slots.last())
            .map(SlotView::end_ns)
            .max();
        let measured = self.measured.iter().flat_map(|m| &m.lanes);
        let measured = measured.filter_map(|l| l.slots.last());
        let measured = measured
            .map(|s| s.start_ns.saturating_add(s.duration_ns))
            .max();
        last.max(measured).unwrap_or(0).max(self.period_ns).max(1)
    }

    /// The plan in one line.
    pub fn headline(&self) -> String {
        format!(
            "{}   blocks of {}   period {}   latency {}   stages {}",
            self.name,
            self.block,
            duration(self.period_ns),
            duration(self.latency_ns),
            self.stages
        )
    }

    /// How the periods of a run went, in one line.
    pub fn pace(&self) -> Option<String> {
        let m = self.measured.as_ref()?;
        Some(format!(
            "measured   period p50 {} p99 {} ({:+.1} % of the plan)   {} full periods",
            duration(m.period_ns),
            duration(m.period_p99_ns),
            100.0 * (m.period_ns as f64 / self.period_ns.max(1) as f64 - 1.0),
            m.periods
        ))
    }

    /// What limits the period, and the busiest lanes and links.
    pub fn bottleneck(&self) -> String {
        let part = |l: &LoadView| {
            format!(
                "{} {} ({:.1} %)",
                l.what,
                duration(l.busy_ns),
                100.0 * l.share
            )
        };
        let parts: Vec<String> = self.loads.iter().take(2).map(part).collect();
        format!("bound by {}   busiest: {}", self.bound_by, parts.join(", "))
    }
}

/// `bytes` of `of`, in words.
pub(super) fn part_of(part: u64, of: u64) -> String {
    format!("{} of {}", bytes(part), bytes(of))
}

/// A step for marks on an axis of `length`: 1, 2 or 5 times a power of ten, at most `marks` of them.
pub(super) fn step(length: u64, marks: u64) -> u64 {
    let least = (length / marks.max(1)).max(1);
    let mut power: u64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step >= least {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}
