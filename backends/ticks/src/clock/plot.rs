//! Curves over time as an SVG drawing that needs nothing else.

use std::fmt::Write as _;

/// A value over time; `None` where there is a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Shown when the pointer rests on the curve.
    pub name: String,
    /// Time in nominal ticks, ascending, and value.
    pub points: Vec<(f64, Option<f64>)>,
}

/// Curves with the same unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What the values are.
    pub title: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 34.0;
/// Distinct for eyes that see few colours too (Okabe & Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8a8a00",
];

/// A range of values with round marks.
struct Axis {
    min: f64,
    max: f64,
    step: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let bounds = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (mut min, mut max) = bounds;
        if min > max {
            (min, max) = (0.0, 1.0);
        }
        if max - min < 1e-9 {
            (min, max) = (min - 0.5, max + 0.5);
        }

        // The smallest of 1, 2 and 5 times a power of ten that gives at most seven marks.
        let mut step = 1e-12;
        let factors = [2.0, 2.5, 2.0];
        let mut next_factor = factors.iter().cycle();
        while (max - min) / step > 6.0 {
            step *= next_factor.next().unwrap_or(&10.0);
        }
        Self { min, max, step }
    }

    fn marks(&self) -> impl Iterator<Item = f64> + '_ {
        let first = (self.min / self.step).ceil() as i64;
        let last = (self.max / self.step).floor() as i64;
        (first..=last).map(|index| index as f64 * self.step)
    }

    fn part(&self, value: f64) -> f64 {
        (value - self.min) / (self.max - self.min)
    }
}

impl Plot {
    /// The drawing, with a mark and a number at round values.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let time_axis = Axis::over(points().map(|&(time, _)| time));
        let value_axis = Axis::over(points().filter_map(|&(_, value)| value));
        let x = |time: f64| LEFT + time_axis.part(time) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value_axis.part(value) * (HEIGHT - TOP - BOTTOM);

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"17\" font-size=\"13\">{}</text>\n",
            escape(&self.title)
        );
        for mark in value_axis.marks() {
            let height = y(mark);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {height:.1}H{}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                height + 4.0,
                number(mark)
            );
        }
        for mark in time_axis.marks() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                x(mark),
                HEIGHT - BOTTOM + 18.0,
                number(mark)
            );
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\"><title>{}</title></path>",
                path(curve, x, y),
                escape(&curve.name)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">ticks</text>\n</svg>",
            WIDTH - RIGHT,
            HEIGHT - 4.0
        );
        svg
    }
}

/// A curve as the commands of a path, which begins anew after a gap.
fn path(curve: &Curve, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut commands = String::new();
    let mut is_down = false;
    for &(time, value) in &curve.points {
        let Some(value) = value else {
            is_down = false;
            continue;
        };
        let command = if is_down { 'L' } else { 'M' };
        let _ = write!(commands, "{command}{:.1} {:.1}", x(time), y(value));
        is_down = true;
    }
    commands
}

/// A mark's number: round, and so short in one of the two ways of writing it.
fn number(value: f64) -> String {
    if value.abs() >= 1e5 {
        return format!("{value:e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_interrupt_a_curve_and_marks_are_round() {
        let points = vec![
            (0.0, Some(0.0)),
            (1.0, Some(7.0)),
            (2.0, None),
            (3.0, Some(3.0)),
        ];
        let curve = Curve {
            name: "a<b".to_owned(),
            points,
        };
        let plot = Plot {
            title: "t".to_owned(),
            curves: vec![curve],
        };
        let svg = plot.svg();
        assert!(
            svg.contains("d=\"M76.0 266.0L286.7 28.0M708.0 164.0\""),
            "{svg}"
        );
        assert!(svg.contains("a&lt;b"));
        for mark in [">0<", ">2<", ">4<", ">6<"] {
            assert!(svg.contains(mark), "{mark} in {svg}");
        }
        assert_eq!(number(2e8), "2e8");
        assert_eq!(number(-12.5), "-12.5");
    }
}
