//! Arena layouts that are known to fit a capacity exactly: a rectangle of time and memory, cut into buffers.
//!
//! Made like the "challenging" instances that MiniMalloc was published with: large buffers beside small ones, long
//! lived ones beside short ones. Unlike those, any number of them can be had, and none of them is known to the search.

use fastrand::Rng;
use zbmd_scheduler::offsets::Item;

/// Bytes that every instance fits in.
pub const CUT_CAPACITY: u64 = GRID * UNIT;

/// Cells of the rectangle on each axis.
const GRID: u64 = 1024;

/// Bytes of a cell, so that sizes are multiples of it.
const UNIT: u64 = 1024;

/// Fewest and most buffers of an instance.
const BUFFERS: std::ops::RangeInclusive<usize> = 300..=500;

/// A buffer as a rectangle of cells.
#[derive(Clone, Copy)]
struct CutRectangle {
    /// Cells before it in time.
    first: u64,
    /// Cells below it in memory.
    offset: u64,
    width: u64,
    height: u64,
}

/// How one instance is cut.
struct CutStyle {
    /// Buffers cut, before some are left out.
    buffers: usize,
    /// Rectangles of which the largest is cut: with one, sizes differ most.
    candidates: usize,
    /// Share of cuts that are pinwheels: five parts that no cut from edge to edge separates.
    pinwheels: f64,
    /// Share of straight cuts that separate in time, the others in memory.
    time_cuts: f64,
    /// Share of buffers left out again: holes that a layout need not fill.
    holes: f64,
}

impl CutStyle {
    fn draw(random: &mut Rng) -> CutStyle {
        CutStyle {
            buffers: random.usize(BUFFERS),
            candidates: random.usize(1..=3),
            pinwheels: random.f64() * 0.5,
            time_cuts: 0.35 + random.f64() * 0.3,
            holes: match random.u8(..4) {
                0 => 0.0,
                _ => random.f64() * 0.2,
            },
        }
    }
}

/// Buffers, and where the cuts put them.
pub struct CutInstance {
    /// The buffers, in random order.
    pub items: Vec<Item>,
    /// Offset of each buffer before all were taken apart: a layout of [`CUT_CAPACITY`] bytes.
    pub offsets: Vec<u64>,
}

/// Buffers that fit [`CUT_CAPACITY`], and, in one instance of four or so, fill it at every moment.
pub fn cut_instance(seed: u64) -> CutInstance {
    let mut random = Rng::with_seed(seed);
    let style = CutStyle::draw(&mut random);
    let mut rectangles = cut_rectangles(&style, &mut random);
    random.shuffle(&mut rectangles);
    let left_out = (rectangles.len() as f64 * style.holes) as usize;
    rectangles.drain(..left_out);

    let item = |cut: &CutRectangle| Item::new(cut.first, cut.first + cut.width, cut.height * UNIT);
    CutInstance {
        items: rectangles.iter().map(item).collect(),
        offsets: rectangles.iter().map(|cut| cut.offset * UNIT).collect(),
    }
}

fn cut_rectangles(style: &CutStyle, random: &mut Rng) -> Vec<CutRectangle> {
    let mut rectangles = vec![CutRectangle {
        first: 0,
        offset: 0,
        width: GRID,
        height: GRID,
    }];
    while rectangles.len() < style.buffers {
        let drawn = (0..style.candidates).map(|_| random.usize(..rectangles.len()));
        let largest = drawn.max_by_key(|&index| rectangles[index].width * rectangles[index].height);
        let Some(index) = largest else { break };
        let whole = rectangles.swap_remove(index);

        let is_wide_enough = whole.width >= 3 && whole.height >= 3;
        if is_wide_enough && random.f64() < style.pinwheels {
            rectangles.extend(cut_pinwheel(&whole, random));
        } else {
            rectangles.extend(cut_straight(&whole, style, random));
        }
    }
    rectangles
}

/// Two parts, or the whole where it is a single cell.
fn cut_straight(whole: &CutRectangle, style: &CutStyle, random: &mut Rng) -> Vec<CutRectangle> {
    let mut low = *whole;
    let mut high = *whole;
    let is_in_time = match (whole.width, whole.height) {
        (1, 1) => return vec![*whole],
        (1, _) => false,
        (_, 1) => true,
        _ => random.f64() < style.time_cuts,
    };

    if is_in_time {
        low.width = random.u64(1..whole.width);
        high.first += low.width;
        high.width -= low.width;
    } else {
        low.height = random.u64(1..whole.height);
        high.offset += low.height;
        high.height -= low.height;
    }
    vec![low, high]
}

/// Four parts around a fifth, turning one way or the other.
fn cut_pinwheel(whole: &CutRectangle, random: &mut Rng) -> Vec<CutRectangle> {
    let left = random.u64(1..whole.width - 1);
    let right = random.u64(left + 1..whole.width);
    let below = random.u64(1..whole.height - 1);
    let above = random.u64(below + 1..whole.height);
    let is_mirrored = random.bool();

    let part = |first: u64, offset: u64, end: u64, top: u64| {
        let width = end - first;
        let start = match is_mirrored {
            true => whole.width - end,
            false => first,
        };
        CutRectangle {
            first: whole.first + start,
            offset: whole.offset + offset,
            width,
            height: top - offset,
        }
    };
    vec![
        part(0, 0, right, below),
        part(right, 0, whole.width, above),
        part(left, above, whole.width, whole.height),
        part(0, below, left, whole.height),
        part(left, below, right, above),
    ]
}
