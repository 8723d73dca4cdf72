//! A model's run under supervision, begun anew when it ends before it should.
//!
//! | thread | what it does |
//! |---|---|
//! | `zbmd model` | starts sessions and waits for their ends |
//! | `zbmd feed` | pushes the inputs of the next request, or zeros, and changes the mode where another size of batches is better |
//! | `zbmd answer` | pulls the outputs of a request and gives them to it |

use std::cmp::Reverse;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use zbmd_executor::supervise::Supervision;
use zbmd_executor::supervise::declare::DeclareError;
use zbmd_executor::{
    EngineError, Isolation, ModeChange, ModeError, ModeHandle, RunError, RunOptions, Session,
    SinkHandle, SourceHandle, Stopper, StreamError, Supervised,
};

use super::admission::{Admission, Computed, Refusal, Submission, Work};
use super::epoch_spans::EpochSpans;
use super::load::LoadedModel;
use super::readiness::{Phase, Readiness};
use super::sequences::{SequenceLimits, Sequences};
use crate::otlp::{ModelTracer, Tracer};
use crate::say;
use crate::stats::ModelStats;

/// Pause before a run is begun anew, doubled each time that it gives no answer.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Runs in a row that ended without an answer, after which the model has failed.
const MAX_FRUITLESS_RUNS: u32 = 6;

/// Empty iterations that each mode of a model is begun with, at most.
const WARM_UP_ITERATIONS: u32 = 32;
/// So many follow one another where sizes of batches are compared.
const WARM_UP_AT_ONCE: u64 = 8;
/// No more of them are asked after so long.
const WARM_UP_LIMIT: Duration = Duration::from_millis(500);

/// How models are run.
#[derive(Clone, Debug)]
pub(crate) struct RunChoices {
    pub(crate) isolation: Isolation,
    /// A second process is ready to take the place of each worker that is one.
    pub(crate) standby: bool,
    /// Workers are tied to their cores.
    pub(crate) pin: bool,
    /// The run's threads have real-time priorities.
    pub(crate) realtime: bool,
    /// Requests of a model that wait, at most.
    pub(crate) queue: usize,
    /// Of models that keep a state.
    pub(crate) sequences: SequenceLimits,
    /// Takes the spans of requests and epochs, if anybody wants them.
    pub(crate) tracer: Option<Tracer>,
}

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
enum EndedRun {
    #[error(transparent)]
    Declared(#[from] DeclareError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Thread(#[from] io::Error),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("it took no more requests")]
    Early,
}

/// A model that answers requests.
pub(crate) struct RunningModel {
    pub(crate) model: LoadedModel,
    pub(crate) stats: ModelStats,
    admission: Admission,
    readiness: Arc<Readiness>,
    tracer: Option<ModelTracer>,
    choices: RunChoices,
    /// Taken by whoever waits for the end.
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// The place in the queue of a request whose tensors are on their way: dropped when they are there, or will not come.
pub(crate) struct KeptPlace {
    running: Arc<RunningModel>,
    since: Instant,
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.running.admission.give_back(self.since);
    }
}

impl RunningModel {
    /// Begins to run a model. It takes requests at once, and is ready when its supervisor says so.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn start(mut model: LoadedModel, choices: RunChoices) -> io::Result<Arc<Self>> {
        // All rows of a request wait in the queue.
        let queue = u32::try_from(choices.queue).unwrap_or(u32::MAX);
        model.max_batch = model.max_batch.min(queue);
        let initial = model.carried.iter().map(|state| state.initial.clone());
        let sequences = Sequences::new(choices.sequences, Arc::new(initial.collect()));
        let tracer = choices.tracer.as_ref();
        let tracer = tracer.map(|tracer| tracer.of_model(&model.name));
        let running = Arc::new(Self {
            tracer,
            admission: Admission::new(choices.queue, Arc::clone(&model.batches), sequences),
            readiness: Arc::new(Readiness::new()),
            stats: ModelStats::default(),
            model,
            choices,
            keeper: Mutex::new(None),
        });
        let kept = Arc::clone(&running);
        let keeper = std::thread::Builder::new()
            .name("zbmd model".to_owned())
            .spawn(move || kept.keep_running())?;
        *running
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        Ok(running)
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// What takes the spans of its requests, if anybody wants them.
    pub(crate) fn tracer(&self) -> Option<&ModelTracer> {
        self.tracer.as_ref()
    }

    /// A plan runs, and requests are admitted.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.is_running() && !self.admission.is_draining()
    }

    /// What the plan says of the response of a request that takes the last place of the queue.
    pub(crate) fn full_queue_ns(&self) -> u64 {
        let limit = self.admission.limit() as u64;
        self.model.batches.response_ns(limit)
    }

    /// Lets a request in; what each of its rows gives.
    ///
    /// # Errors
    /// Why it would not be answered, or not in time.
    pub(crate) fn submit(
        &self,
        submission: Submission,
    ) -> Result<Vec<oneshot::Receiver<Computed>>, Refusal> {
        let is_running = self.readiness.is_running();
        self.admission.submit(submission, is_running)
    }

    /// Keeps a place for a request of one row whose tensors are on their way.
    ///
    /// # Errors
    /// Why it would not be answered, or not in time.
    pub(crate) fn announce(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> Result<KeptPlace, Refusal> {
        let is_running = self.readiness.is_running();
        let since = self.admission.announce(timeout, is_running)?;
        Ok(KeptPlace {
            running: Arc::clone(self),
            since,
        })
    }

    /// It keeps a state for each sequence of requests.
    pub(crate) fn keeps_state(&self) -> bool {
        !self.model.carried.is_empty()
    }

    /// How many sequences there may be, and how long.
    pub(crate) fn sequence_limits(&self) -> SequenceLimits {
        self.choices.sequences
    }

    /// Asks for empty requests one after the other, as many at once as each mode computes together: kernels and threads are warm then, and
    /// what a response, an iteration of each size and a change of modes take is known.
    pub(crate) fn warm_up(&self) {
        let batches = &self.model.batches;
        // It ends with the smallest, which single requests are best off in.
        let mut sizes: Vec<_> = batches.rows().enumerate().collect();
        sizes.sort_by_key(|(_, rows)| Reverse(*rows));
        for (mode, rows) in sizes {
            self.admission.use_only(Some(mode));
            if rows <= self.admission.limit() as u64 && !self.warm_up_mode(mode, rows) {
                break;
            }
        }
        self.admission.use_only(None);
        self.admission.forget_executions();
    }

    /// Whether requests are answered still.
    fn warm_up_mode(&self, mode: usize, rows: u64) -> bool {
        let batches = &self.model.batches;
        let limit = WARM_UP_LIMIT / batches.count() as u32;
        let mut at_once = 1;
        let begun = Instant::now();
        for iteration in 0..WARM_UP_ITERATIONS {
            let empty = Submission {
                rows: (0..rows * at_once).map(|_| self.zeros()).collect(),
                ..Submission::default()
            };
            let asked = Instant::now();
            // One that is refused, or not answered, comes from a model that ends.
            let Ok(answers) = self.admission.submit(empty, true) else {
                return false;
            };
            if answers
                .into_iter()
                .any(|answer| answer.blocking_recv().is_err())
            {
                return false;
            }

            // The first waits for the change of modes too.
            if iteration > 0 {
                batches.answered(mode, asked.elapsed() / at_once as u32);
            }
            // Where sizes are compared, what counts is how soon one iteration follows another.
            if batches.is_used() && iteration == 1 {
                let in_time = limit.as_nanos() / asked.elapsed().as_nanos().max(1);
                let in_queue = self.admission.limit() as u64 / rows;
                let most = in_queue.min(WARM_UP_AT_ONCE);
                at_once = u64::try_from(in_time).unwrap_or(most).clamp(1, most);
            }
            if begun.elapsed() > limit {
                break;
            }
        }
        true
    }

    /// Admits no request any more, and ends the run once all that were are answered.
    pub(crate) fn retire(self: &Arc<Self>) {
        self.admission.drain();
        let retired = Arc::clone(self);
        let joiner = std::thread::Builder::new().name("zbmd retire".to_owned());
        // Without a thread that waits for it, it ends all the same.
        let _ = joiner.spawn(move || retired.join());
    }

    /// Waits for the end of the run, after [`Admission::drain`] or a failure.
    pub(crate) fn join(&self) {
        let keeper = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(keeper) = keeper {
            let _ = keeper.join();
        }
    }

    /// Runs the model until it is drained, or has failed too often.
    fn keep_running(&self) {
        let mut fruitless_runs = 0;
        loop {
            let mut answers = 0;
            let Err(error) = self.run_once(&mut answers) else {
                return;
            };
            let name = &self.model.name;
            fruitless_runs = if answers > 0 { 0 } else { fruitless_runs + 1 };
            if fruitless_runs == MAX_FRUITLESS_RUNS {
                let why = error.to_string();
                say(format_args!(
                    "zbmd-serve: {name}: failed, and is given up: {why}"
                ));
                self.readiness.enter(Phase::Failed { why: why.clone() });
                self.admission.fail(why);
                return;
            }
            self.readiness.enter(Phase::Restarting);
            let pause = FIRST_PAUSE * 2_u32.pow(fruitless_runs);
            say(format_args!(
                "zbmd-serve: {name}: its run ended and is begun anew in {pause:?}: {error}"
            ));
            std::thread::sleep(pause);
        }
    }

    /// One session, from its start to its end. It is well if all that was admitted is answered and no more is.
    fn run_once(&self, answers: &mut u64) -> Result<(), EndedRun> {
        let engine = &self.model.engine;
        let mut supervised = Supervised::declared(&Supervision::default(), engine)?;
        // Models that are served keep no tokens, so that a border costs next to nothing: nothing that was answered is computed
        // again after a loss.
        supervised.save_every = Some(1);
        let readiness = Arc::clone(&self.readiness);
        let epochs = self.tracer.clone().map(EpochSpans::new).map(Arc::new);
        let followed = epochs.clone();
        supervised.listener = Some(Arc::new(move |event| {
            readiness.follow(event);
            if let Some(epochs) = &followed {
                epochs.follow(event);
            }
        }));
        let mut session = engine.start(RunOptions {
            isolation: self.choices.isolation.clone(),
            standby: self.choices.standby,
            pin: self.choices.pin,
            realtime: self.choices.realtime,
            supervised: Some(supervised),
            ..RunOptions::default()
        })?;
        let sources = self.sources(&mut session)?;
        let sinks = self.sinks(&mut session)?;

        let again = self.admission.begin_run();
        if again > 0 {
            let name = &self.model.name;
            say(format_args!(
                "zbmd-serve: {name}: {again} requests are computed again"
            ));
        }
        let stopper = session.stopper();
        let modes = session.modes();
        let role = session.pump_role();
        let run_result = std::thread::scope(|scope| {
            let feeder = std::thread::Builder::new().name("zbmd feed".to_owned());
            feeder.spawn_scoped(scope, || {
                // Without its priority it feeds nothing, which ends the run.
                if role.enter().is_ok() {
                    self.feed(sources, &modes);
                }
                self.end_if_drained(&stopper);
            })?;
            let answerer = std::thread::Builder::new().name("zbmd answer".to_owned());
            let answerer = answerer.spawn_scoped(scope, || {
                role.enter()?;
                Ok::<_, io::Error>(self.answer(sinks, &stopper))
            });

            // Without a thread that answers, the run is given up.
            let run_result = answerer.is_ok().then(|| session.join());
            // The feeder may wait for a request.
            self.admission.interrupt();
            if let Some(epochs) = &epochs {
                epochs.finish();
            }
            *answers = answerer?.join().unwrap_or(Ok(0))?;
            Ok::<_, EndedRun>(run_result.unwrap_or(Err(RunError::Abandoned)))
        })?;
        if self.admission.is_drained() {
            return Ok(());
        }
        run_result?;
        Err(EndedRun::Early)
    }

    fn zeros(&self) -> Vec<Vec<u8>> {
        let inputs = self.model.inputs.iter();
        inputs.map(|input| vec![0; input.bytes()]).collect()
    }

    fn sources(&self, session: &mut Session) -> Result<Vec<SourceHandle>, StreamError> {
        let inputs = self.model.inputs.iter().map(|input| &input.name);
        let states = self.model.carried.iter().map(|state| &state.source);
        inputs
            .chain(states)
            .map(|name| session.source(name))
            .collect()
    }

    fn sinks(&self, session: &mut Session) -> Result<Vec<SinkHandle>, StreamError> {
        let outputs = self.model.outputs.iter().map(|output| &output.name);
        let states = self.model.carried.iter().map(|state| &state.sink);
        outputs
            .chain(states)
            .map(|name| session.sink(name))
            .collect()
    }

    /// Pushes until the run ends. The sources end with it.
    fn feed(&self, mut sources: Vec<SourceHandle>, modes: &ModeHandle) {
        let zeros = self.zeros();
        let states = self.model.carried.iter();
        let no_states: Vec<Vec<u8>> = states.map(|state| vec![0; state.initial.len()]).collect();
        loop {
            let work = self.admission.next_work();
            let (inputs, states) = match &work {
                Work::Request(inputs, states) => (inputs.as_slice(), states.as_slice()),
                Work::Filler => (zeros.as_slice(), no_states.as_slice()),
                Work::Mode(mode) => {
                    self.change_mode(*mode, modes);
                    continue;
                }
                Work::End => return,
            };
            let mut pushed = sources.iter_mut().zip(inputs.iter().chain(states));
            if pushed.any(|(source, bytes)| source.push_bytes(bytes).is_err()) {
                return;
            }
        }
    }

    /// Goes over to another size of batches, if that can be now.
    fn change_mode(&self, mode: usize, modes: &ModeHandle) {
        let batches = &self.model.batches;
        let begun = Instant::now();
        let changed = modes.change(batches.mode(mode));
        match changed.and_then(ModeChange::wait) {
            Ok(entry) => {
                batches.changed(begun.elapsed());
                self.admission.mode_changed(mode, entry.iteration);
            }
            // Nothing can be pushed into a run that is over, which ends the feeder.
            Err(ModeError::Ended) => self.admission.mode_refused(mode),
            Err(why) => {
                let name = &self.model.name;
                say(format_args!("zbmd-serve: {name}: {why}"));
                self.admission.mode_refused(mode);
            }
        }
    }

    /// Once all that was admitted is answered, nobody waits for the rest of a block, which may take seconds.
    fn end_if_drained(&self, stopper: &Stopper) {
        if self.admission.is_drained() {
            stopper.give_up();
        }
    }

    /// Pulls until the run ends; how many iterations.
    fn answer(&self, mut sinks: Vec<SinkHandle>, stopper: &Stopper) -> u64 {
        let outputs = self.model.outputs.iter().map(|output| output.bytes());
        let states = self.model.carried.iter().map(|state| state.initial.len());
        let sizes = outputs.chain(states);
        let mut tensors: Vec<Vec<u8>> = sizes.map(|size| vec![0; size]).collect();
        let mut answers = 0;
        loop {
            for (sink, bytes) in sinks.iter_mut().zip(&mut tensors) {
                let tokens = bytes.len() as u64 / sink.token().bytes();
                match sink.pull_bytes(bytes) {
                    Ok(pulled) if pulled == tokens => {}
                    // The end of the run, or of a part of an iteration, which is computed again.
                    Ok(_) | Err(_) => return answers,
                }
            }
            let (outputs, states) = tensors.split_at(self.model.outputs.len());
            self.admission.finish_next(outputs, states);
            self.end_if_drained(stopper);
            answers += 1;
        }
    }
}
