//! A plan as a drawing: a row for each lane, slots by time, transfers as curves between rows. Stands alone.
//!
//! Slots narrower than a pixel are drawn together, so that the file grows with its width and not with the slots.

use std::fmt::Write;

use zbmd_ir::text::{duration, printable};

use super::labels::step;
use super::measured::LaneRow;
use super::{Act, PlanView, SlotView, View};

/// Width of the drawing, and of the names at its left.
const WIDTH: u64 = 1200;
const NAMES: u64 = 140;
/// Height of a row, and of what is above the rows and below.
const ROW_HEIGHT: u64 = 30;
const ABOVE: u64 = 64;
const BELOW: u64 = 30;
/// A measured slot that was late.
const LATE: &str = "#e03131";
/// Max number of curves that are drawn: more of them hide the slots.
const CURVES: usize = 400;
/// Units of the drawing to a pixel: coordinates are whole numbers of them, so that no float is printed.
const FINE: u64 = 10;

/// Text of the drawing: dark on white, whatever is around it.
const STYLE: &str = "text{font:11px sans-serif;fill:#222}.t{font-size:15px;font-weight:bold}.n{text-anchor:end}\
.g{stroke:#ddd}.b{fill:#f4f4f4}.f{fill:#fff;pointer-events:none}.c{fill:none;stroke:#555;stroke-opacity:.45}";

/// The plan as SVG.
pub fn plan(view: &View, plan: &PlanView) -> String {
    let scale = Scale { end: plan.end_ns() };
    let lane_rows = plan.rows();
    let total_height = ABOVE + ROW_HEIGHT * lane_rows.len() as u64 + BELOW;
    let mut drawing = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total_height}\" width=\"{WIDTH}\" height=\"{total_height}\">\n\
         <title>{0}</title>\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{total_height}\" fill=\"#fff\"/>\n\
         <text class=\"t\" x=\"12\" y=\"24\">{0}</text>\n<text x=\"12\" y=\"42\">{1}</text>\n",
        escaped(&format!("{} {}", view.model, plan.name)),
        escaped(&format!(
            "{}   {}",
            plan.headline(),
            plan.pace().unwrap_or_else(|| plan.bottleneck())
        )),
    );

    draw_axis(&mut drawing, &scale, total_height);
    for (at, row) in lane_rows.iter().enumerate() {
        draw_lane(
            &mut drawing,
            view,
            plan,
            row,
            &scale,
            ABOVE + ROW_HEIGHT * at as u64,
        );
    }

    draw_curves(&mut drawing, plan, &lane_rows, &scale);
    drawing + "</svg>\n"
}

/// Times to places.
struct Scale {
    end: u64,
}

impl Scale {
    /// In tenths of a pixel.
    fn x(&self, ns: u64) -> u64 {
        let width = u128::from((WIDTH - NAMES - 20) * FINE);
        NAMES * FINE + (u128::from(ns) * width / u128::from(self.end)) as u64
    }
}

/// Tenths as a decimal number.
fn px(tenths: u64) -> String {
    match tenths % FINE {
        0 => format!("{}", tenths / FINE),
        rest => format!("{}.{rest}", tenths / FINE),
    }
}

fn draw_axis(out: &mut String, scale: &Scale, height: u64) {
    let step_ns = step(scale.end, 10);
    let mut at_ns = 0;
    while at_ns <= scale.end {
        let x = px(scale.x(at_ns));
        let tick_label = if at_ns == 0 {
            "0".to_owned()
        } else {
            duration(at_ns)
        };
        let axis_bottom = height - BELOW;
        let _ = writeln!(
            out,
            "<path class=\"g\" d=\"M{x} {ABOVE}V{axis_bottom}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{tick_label}</text>",
            height - 10
        );
        at_ns = at_ns.saturating_add(step_ns);
    }
}

fn draw_lane(
    out: &mut String,
    view: &View,
    plan: &PlanView,
    row: &LaneRow,
    scale: &Scale,
    top: u64,
) {
    let lane = &row.lane;
    // What was measured stands below the lane that it is of.
    let lane_name = match row.measured {
        Some(_) => lane.kind.to_owned(),
        None => escaped(&view.lane_name(lane.device, lane.kind)),
    };
    let from = scale.x(0);
    let to = scale.x(scale.end);
    let y = top + 3;
    let height = ROW_HEIGHT - 6;
    let share_percent = 100.0 * lane.busy_ns as f64 / plan.period_ns.max(1) as f64;
    let _ = writeln!(
        out,
        "<text class=\"n\" x=\"{}\" y=\"{}\">{lane_name} {share_percent:.1} %</text><rect class=\"b\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{height}\"/>",
        NAMES - 8,
        top + 19,
        px(from),
        px(to - from)
    );

    let lane_drawing = LaneDrawing {
        view,
        plan,
        row,
        scale,
        y,
        height,
    };
    let mut first = 0;
    while first < lane.slots.len() {
        first = lane_drawing.draw_box(out, first);
    }
}

/// A lane whose slots are being drawn.
struct LaneDrawing<'a> {
    view: &'a View,
    plan: &'a PlanView,
    row: &'a LaneRow,
    scale: &'a Scale,
    y: u64,
    height: u64,
}

impl LaneDrawing<'_> {
    /// Draws the slot at `first` and those after it that share its pixel as one box, coloured as the longest of them.
    /// Returns the position of the next slot.
    fn draw_box(&self, out: &mut String, first: usize) -> usize {
        let Self {
            view,
            plan,
            row,
            scale,
            ..
        } = *self;
        let slots = &row.lane.slots;
        let slot = &slots[first];
        let left = scale.x(slot.start_ns);
        let mut right = scale.x(slot.end_ns()).max(left + 1);

        // A late slot colours the whole box, however short it is: it is what one looks for.
        let mut longest = slot;
        let mut is_late = row.is_late(first);
        let mut next = first + 1;
        while let Some(other) = slots.get(next) {
            let shares_pixel = right - left < FINE && scale.x(other.end_ns()) <= left + FINE;
            if !shares_pixel {
                break;
            }
            right = right.max(scale.x(other.end_ns()));
            if other.duration_ns > longest.duration_ns {
                longest = other;
            }
            is_late |= row.is_late(next);
            next += 1;
        }

        let slot_title = match next - first {
            1 => escaped(&(tooltip(view, plan, slot) + &measured(row, first))),
            n => escaped(&format!("{n} slots, longest {}", view.label(plan, longest))),
        };
        let fill = if is_late {
            LATE.to_owned()
        } else {
            colour(longest)
        };
        let _ = write!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"><title>{slot_title}</title></rect>",
            px(left),
            self.y,
            px(right - left),
            self.height,
        );

        // A letter is at most 7 pixels wide; a label that does not fit is in the tooltip only.
        let label = view.short_label(plan, slot);
        let label_characters = (right - left) / FINE / 7;
        if next - first == 1
            && slot.act == Act::Fire
            && label.chars().count() as u64 <= label_characters
        {
            let _ = write!(
                out,
                "<text class=\"f\" x=\"{}\" y=\"{}\">{}</text>",
                px(left + 4 * FINE),
                self.y + 16,
                escaped(&label)
            );
        }

        out.push('\n');
        next
    }
}

fn tooltip(view: &View, plan: &PlanView, slot: &SlotView) -> String {
    let label = view.label(plan, slot);
    let start = duration(slot.start_ns);
    let length = duration(slot.duration_ns);
    format!("{label} at {start} +{length} stage {}", slot.stage)
}

/// What a tooltip adds of a slot as it was.
fn measured(row: &LaneRow, slot: usize) -> String {
    let Some(measured) = row.of(slot) else {
        return String::new();
    };
    let length = duration(measured.p99_ns);
    let difference = duration(measured.late_ns.unsigned_abs());
    let direction = if measured.late_ns > 0 {
        "late"
    } else {
        "early"
    };
    format!(", 99 % in {length}, {difference} {direction}")
}

fn draw_curves(out: &mut String, plan: &PlanView, rows: &[LaneRow], scale: &Scale) {
    // Measured rows are between the planned ones, so a lane's number is not that of its row.
    let mut row_middles = Vec::with_capacity(plan.lanes.len());
    for lane in 0..plan.lanes.len() {
        let planned_row = rows
            .iter()
            .position(|row| row.index == lane && row.measured.is_none());
        let row = planned_row.unwrap_or(0) as u64;
        row_middles.push(ABOVE + ROW_HEIGHT * row + ROW_HEIGHT / 2);
    }

    // Tokens sent in an earlier period come from beyond the left border: no curve is drawn for them.
    let drawn_transfers = plan.transfers.iter().filter(|t| t.periods == 0);
    for transfer in drawn_transfers.take(CURVES) {
        let (from_lane, from_slot) = transfer.from;
        let (to_lane, to_slot) = transfer.to;
        let from = &plan.lanes[from_lane as usize].slots[from_slot as usize];
        let to = &plan.lanes[to_lane as usize].slots[to_slot as usize];
        let y0 = row_middles[from_lane as usize];
        let y1 = row_middles[to_lane as usize];

        // A receipt may be waiting already when its tokens are sent.
        let arrival_ns = to.start_ns.max(from.end_ns()).min(to.end_ns());
        let x0 = scale.x(from.end_ns());
        let x1 = scale.x(arrival_ns);
        let middle_x = px((x0 + x1) / 2);
        let _ = writeln!(
            out,
            "<path class=\"c\" d=\"M{} {y0}C{middle_x} {y0} {middle_x} {y1} {} {y1}\"/>",
            px(x0),
            px(x1)
        );
    }
}

/// Actors differ in hue, neighbours far apart; what moves tokens is grey.
fn colour(slot: &SlotView) -> String {
    match slot.act {
        Act::Fire | Act::Loop => format!("hsl({},55%,45%)", (u64::from(slot.id) * 137 + 210) % 360),
        Act::Send => "#8d99a6".to_owned(),
        Act::Recv => "#b3bcc5".to_owned(),
        Act::Release => "#d5d9dd".to_owned(),
        Act::Carry => "#c9b26b".to_owned(),
        Act::Fetch => "#6b9fc9".to_owned(),
        Act::Await => "#c98b6b".to_owned(),
    }
}

/// Text within XML. Control characters, which XML lacks, are shown as escapes such as `\u{1b}`.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped_text = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => escaped_text.push_str("&amp;"),
            '<' => escaped_text.push_str("&lt;"),
            '>' => escaped_text.push_str("&gt;"),
            '"' => escaped_text.push_str("&quot;"),
            c => escaped_text.push(c),
        }
    }
    escaped_text
}
