//! Plans as drawings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zbmd_ir::{ActorId, Graph};

use crate::{LinkId, NodeId, TickMachine, VerifiedPlan};

/// Colours in turn: six of Okabe & Ito, "Color Universal Design" (2008), and darker ones of four of these.
const COLOURS: [&str; 10] = [
    "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#8c6000", "#2b7fb0",
    "#00664a", "#8a3d00",
];
const LABEL_WIDTH: f64 = 150.0;
const CHART_WIDTH: f64 = 850.0;
const ROW_HEIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
/// Widths below which a box has no name in it.
const LETTER_WIDTH: f64 = 7.0;

/// What a row of the drawing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    Compute(NodeId),
    Link { from: NodeId, link: LinkId },
}

impl RowKey {
    /// Nodes in order, each with its links below it.
    fn order(self) -> (NodeId, Option<LinkId>) {
        match self {
            RowKey::Compute(node) => (node, None),
            RowKey::Link { from, link } => (from, Some(link)),
        }
    }
}

/// Something that takes ticks of a row, once a period.
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) ticks: u64,
    /// Which fires, or which wrote the frames.
    pub(crate) actor: ActorId,
    name: String,
    title: String,
}

#[cfg(test)]
impl Span {
    pub(crate) fn new(start: u64, ticks: u64, actor: ActorId) -> Self {
        Self {
            start,
            ticks,
            actor,
            name: String::new(),
            title: String::new(),
        }
    }
}

/// A row, and what is in it.
pub(crate) struct Row {
    pub(crate) key: RowKey,
    pub(crate) spans: Vec<Span>,
}

/// The calendars of all nodes and links that do something, over one period, as SVG: a row for the firings of each node, and
/// below it one for the frames on each of its outgoing links. Boxes of an actor and of what it writes have one colour;
/// their titles say more. What goes over the end of the period goes on at its beginning.
pub fn tick_drawing(graph: &Graph, machine: &TickMachine, plan: &VerifiedPlan) -> String {
    let rows = rows(graph, machine, plan);
    let width = LABEL_WIDTH + CHART_WIDTH + 10.0;
    let height = TOP + rows.len() as f64 * ROW_HEIGHT + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"6\" y=\"17\" font-size=\"13\">a period of {} ticks</text>\n",
        plan.period
    );
    write_marks(&mut svg, plan.period, height);
    for (index, Row { key, spans }) in rows.iter().enumerate() {
        let top = TOP + index as f64 * ROW_HEIGHT;
        write_label(&mut svg, machine, *key, top);
        for span in spans {
            write_span(&mut svg, plan.period, span, *key, top);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// The rows of all nodes and links that do something: those of nodes in order, each with its links below it.
pub(crate) fn rows(graph: &Graph, machine: &TickMachine, plan: &VerifiedPlan) -> Vec<Row> {
    let mut rows: BTreeMap<RowKey, Vec<Span>> = BTreeMap::new();
    let Ok(network) = machine.network() else {
        return Vec::new();
    };
    for (actor, starts) in plan.starts.iter_enumerated() {
        let ticks = machine.ticks_of(&graph.actors[actor]);
        let name = &graph.actors[actor].name;
        let spans = starts.iter().enumerate().map(|(firing, &start)| Span {
            start,
            ticks,
            actor,
            name: name.clone(),
            title: format!("{name}[{firing}]: ticks {start} to {}", start + ticks),
        });
        let row = rows
            .entry(RowKey::Compute(plan.placement[actor]))
            .or_default();
        row.extend(spans);
    }

    for message in &plan.messages {
        let writer = graph.channels[message.channel].from.actor;
        let name = format!("{}[{}]", message.channel, message.firing);
        for hop in &message.hops {
            let from = network.links()[hop.link].from;
            let link = hop.link;
            let spans = hop.runs.iter().map(|run| Span {
                start: run.start,
                ticks: run.frames,
                actor: writer,
                name: String::new(),
                title: format!(
                    "{name} of {} to {}: {} frames from tick {}",
                    graph.actors[writer].name, message.to, run.frames, run.start
                ),
            });
            rows.entry(RowKey::Link { from, link })
                .or_default()
                .extend(spans);
        }
    }
    let rows = rows.into_iter().map(|(key, spans)| Row { key, spans });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by_key(|row| row.key.order());
    rows
}

fn colour_of(actor: ActorId) -> &'static str {
    COLOURS[actor.index() % COLOURS.len()]
}

fn x_of(tick: u64, period: u64) -> f64 {
    LABEL_WIDTH + CHART_WIDTH * tick as f64 / period as f64
}

/// Ticks at round distances.
fn write_marks(svg: &mut String, period: u64, height: f64) {
    let mut step = 1;
    let factors = [2, 5, 10];
    let mut decade = 1_u64;
    while period / step > 10 {
        let next = factors
            .iter()
            .map(|factor| factor * decade)
            .find(|&next| next > step);
        step = next.unwrap_or(step);
        if step == 10 * decade {
            decade = step;
        }
    }
    for tick in (0..=period).step_by(step as usize) {
        let x = x_of(tick, period);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {}V{}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            TOP - 6.0,
            height - 8.0,
            TOP - 10.0
        );
    }
}

fn write_label(svg: &mut String, machine: &TickMachine, key: RowKey, top: f64) {
    let (label, indent) = match key {
        RowKey::Compute(node) => (node.to_string(), 6.0),
        RowKey::Link { link, .. } => {
            let to = machine.network().map(|network| network.links()[link].to);
            let to = to.map_or_else(|_| String::new(), |to| to.to_string());
            (format!("{link} to {to}"), 20.0)
        }
    };
    let _ = writeln!(
        svg,
        "<text x=\"{indent}\" y=\"{:.1}\">{label}</text>",
        top + 14.0
    );
}

/// A box, or two where it goes over the end of the period.
fn write_span(svg: &mut String, period: u64, span: &Span, key: RowKey, top: f64) {
    let start = span.start % period;
    let first = span.ticks.min(period - start);
    let pieces = [(start, first), (0, span.ticks - first)];
    let (inset, box_height) = match key {
        RowKey::Compute(_) => (2.0, ROW_HEIGHT - 4.0),
        RowKey::Link { .. } => (6.0, ROW_HEIGHT - 12.0),
    };
    for (start, ticks) in pieces.into_iter().filter(|&(_, ticks)| ticks > 0) {
        let x = x_of(start, period);
        let width = x_of(start + ticks, period) - x;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{box_height}\" \
             fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.5\"><title>{}</title></rect>",
            top + inset,
            colour_of(span.actor),
            escape(&span.title)
        );
        let fits = LETTER_WIDTH * span.name.chars().count() as f64 <= width;
        if fits && !span.name.is_empty() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" pointer-events=\"none\">{}</text>",
                x + width / 2.0,
                top + 14.0,
                escape(&span.name)
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
