//! What clients see that ask as fast as they are answered.

use std::time::{Duration, Instant};

/// How often and how long each subject is asked; a row has the medians.
pub(crate) const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(1);

/// What clients saw in one turn, each of which asks again as soon as it is answered.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Answers in a second.
    pub(crate) rate: f64,
}

impl Turn {
    /// Lets so many clients ask until it is over; each gives how long its answers took, in microseconds.
    pub(crate) fn run(clients: usize, ask_until: impl Fn(Instant) -> Vec<f64> + Sync) -> Self {
        Self::run_for(TURN, clients, ask_until)
    }

    /// The same for so long.
    pub(crate) fn run_for(
        time: Duration,
        clients: usize,
        ask_until: impl Fn(Instant) -> Vec<f64> + Sync,
    ) -> Self {
        let end = Instant::now() + time;
        let mut times: Vec<f64> = std::thread::scope(|scope| {
            let asking = || scope.spawn(|| ask_until(end));
            let clients: Vec<_> = (0..clients).map(|_| asking()).collect();
            let answers = clients.into_iter();
            answers
                .flat_map(|client| client.join().expect("no panic"))
                .collect()
        });
        times.sort_by(f64::total_cmp);
        Self {
            p50_us: times[times.len() / 2],
            p99_us: times[times.len() * 99 / 100],
            rate: times.len() as f64 / time.as_secs_f64(),
        }
    }

    /// Each figure's own median.
    pub(crate) fn median(turns: Vec<Self>) -> Self {
        let middle = |figure: fn(&Self) -> f64| {
            let mut figures: Vec<f64> = turns.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Self {
            p50_us: middle(|turn| turn.p50_us),
            p99_us: middle(|turn| turn.p99_us),
            rate: middle(|turn| turn.rate),
        }
    }
}
