//! From a key to a file or a pipe. Zenoh's threads put what comes into a queue of fixed length, and one thread writes it out: a
//! reader that stalls fills the queue, then Zenoh's buffers, and so stops the publisher.

mod assembly;
mod output;

use std::borrow::Cow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::key_expr::KeyExpr;
use zenoh::qos::CongestionControl;
use zenoh::query::{ConsolidationMode, QueryTarget};
use zenoh::sample::{Sample, SampleKind};
use zenoh::{Session, Wait};

use self::assembly::{Assembly, Verdict};
use self::output::Output;
use crate::args::{First, SourceArgs};
use crate::interrupt::is_interrupted;
use crate::{BridgeError, Kind, Position, RunName, session};

/// Messages that wait to be written.
const QUEUE_MESSAGES: usize = 64;
/// How often a silent stream looks at signals, its output and its times.
const TICK: Duration = Duration::from_millis(50);
/// A stream that has been silent for so long asks its sink whether it lacks something.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A question that brought nothing is asked again no sooner.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// A sink is told how far this reader is so often, or after so many bytes.
const REPORT_EVERY: Duration = Duration::from_millis(100);
const REPORT_BYTES: u64 = 256 << 10;
/// A question that has no answer by then is asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// What stands before the data of a message of ROS 2.
const CDR_HEADER_BYTES: usize = 4;
/// Plain CDR, least significant byte first; the other two bytes are options.
const CDR_LITTLE_ENDIAN: [u8; 2] = [0, 1];

/// What Zenoh's threads bring.
enum Arrival {
    Sample(Sample),
    Reply(Sample),
    /// A question has had all its answers.
    Answered,
}

/// Says that a question has had all its answers, when Zenoh forgets it.
struct AnswerGuard(SyncSender<Arrival>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        // An error says that nobody waits any more.
        let _ = self.0.send(Arrival::Answered);
    }
}

struct Source<'a> {
    args: &'a SourceArgs,
    session: &'a Session,
    key: KeyExpr<'static>,
    sender: SyncSender<Arrival>,
    output: Output,
    assembly: Assembly,
    /// Different for each process.
    reader_name: String,
    /// A question is open since then.
    asked: Option<Instant>,
    last_asked: Instant,
    /// A reply to it said that what is kept begins there.
    first_kept: Option<u64>,
    /// Something new was taken since it was asked.
    has_advanced: bool,
    last_message: Instant,
    /// When something began to be missing, or the last time that some of it came.
    missing_since: Option<Instant>,
    last_report: Instant,
    reported: Option<u64>,
    /// Everything was taken; the sink is told so until then.
    ended_until: Option<Instant>,
    messages: u64,
    deletions: u64,
}

/// Writes what is published on a key until the stream ends.
///
/// # Errors
/// See [`BridgeError`].
pub fn read_from_zenoh(args: &SourceArgs) -> Result<(), BridgeError> {
    let key = session::key_expression(&args.key)?;
    let token_bytes = u64::from(args.token_bytes);
    let first = match args.from {
        First::Now => None,
        First::Token(token) => Some(token.checked_mul(token_bytes).ok_or_else(|| {
            BridgeError::Usage(format!(
                "--from {token} of {token_bytes} bytes lies beyond what an offset can say"
            ))
        })?),
    };
    let output = Output::open(&args.output, token_bytes)?;
    let next = match (first, output.found_bytes()) {
        (first, 0) => first,
        (Some(first), _) if args.run.is_some() => first.checked_add(output.whole_bytes()),
        _ => {
            return Err(BridgeError::Usage(format!(
                "{} has {} bytes already: say with --run which run they are of, without --from now, or remove it",
                output.name(),
                output.found_bytes()
            )));
        }
    };

    let session = session::open(&args.network)?;
    output.cut_partial_token()?;
    let (sender, arrivals) = sync_channel(QUEUE_MESSAGES);
    let sample_sender = sender.clone();
    let subscriber = session
        .declare_subscriber(&key)
        .callback(move |sample| {
            // An error says that nobody reads any more.
            let _ = sample_sender.send(Arrival::Sample(sample));
        })
        .wait()
        .map_err(BridgeError::of_zenoh("the subscription"))?;

    let mut assembly = Assembly::new(args.run.clone(), next, token_bytes);
    if args.cdr {
        // Services of ROS 2 would take questions for calls of theirs.
        assembly.expect_plain_samples();
    }
    let now = Instant::now();
    let mut source = Source {
        args,
        session: &session,
        key,
        sender,
        output,
        assembly,
        reader_name: format!("{:016x}", reader_number()),
        asked: None,
        last_asked: now,
        first_kept: None,
        has_advanced: false,
        last_message: now,
        missing_since: None,
        last_report: now,
        reported: None,
        ended_until: None,
        messages: 0,
        deletions: 0,
    };
    let begun = match source.assembly.is_plain() {
        true => Ok(()),
        false => source.ask(Kind::Want),
    };
    let result = begun.and_then(|()| source.read_all(&arrivals));
    // What was taken before something went wrong is right.
    let result = result
        .and_then(|()| source.output.finish())
        .or_else(|error| {
            match error {
                BridgeError::ReaderGone { .. } | BridgeError::File { .. } => {}
                _ => source.output.flush()?,
            }
            Err(error)
        });
    source.summarise();

    // Threads of Zenoh that wait for room in the queue see that nobody reads any more.
    drop(arrivals);
    drop(source);
    let undeclared = subscriber.undeclare().wait();
    let closed = undeclared.and_then(|()| session.close().wait());
    result.and(closed.map_err(BridgeError::of_zenoh("closing the session")))
}

/// A number that no other reader has, unless two start in the same nanosecond with the same process number.
fn reader_number() -> u64 {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    (since_epoch.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40)
}

impl Source<'_> {
    fn read_all(&mut self, arrivals: &Receiver<Arrival>) -> Result<(), BridgeError> {
        let mut last_look = Instant::now();
        loop {
            let arrival = match arrivals.try_recv() {
                Ok(arrival) => Ok(arrival),
                Err(_) => {
                    self.output.flush()?;
                    arrivals.recv_timeout(TICK)
                }
            };
            if is_interrupted() {
                return Err(BridgeError::Interrupted);
            }
            let is_done = match arrival {
                Ok(Arrival::Sample(sample)) => self.sample(&sample, false)?,
                Ok(Arrival::Reply(sample)) => self.sample(&sample, true)?,
                Ok(Arrival::Answered) => {
                    self.asked = None;
                    self.judge_missing()?;
                    false
                }
                // This thread has a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
            };
            if is_done
                || self
                    .ended_until
                    .is_some_and(|until| Instant::now() >= until)
            {
                return Ok(());
            }
            if last_look.elapsed() >= TICK {
                last_look = Instant::now();
                self.output.check_reader()?;
            }
            self.keep_in_step()?;
        }
    }

    /// One sample or reply; whether the stream is over, and its sink knows that.
    fn sample(&mut self, sample: &Sample, is_reply: bool) -> Result<bool, BridgeError> {
        if sample.kind() == SampleKind::Delete {
            self.deletions += 1;
            return Ok(false);
        }
        let attachment = sample.attachment().map(ZBytes::to_bytes);
        let position =
            Position::read(attachment.as_deref().unwrap_or_default()).map_err(|error| {
                sample_error(
                    sample,
                    format!("has an attachment of a bridge that cannot be read: it {error}"),
                )
            })?;
        let payload = sample.payload().to_bytes();
        self.last_message = Instant::now();
        let Some(position) = position else {
            // What answers questions besides bridges is of no interest.
            if !is_reply {
                self.plain_sample(sample, &payload)?;
            }
            return Ok(false);
        };

        if is_reply && position.kind == Kind::First {
            let first_kept = self.first_kept.get_or_insert(position.offset);
            *first_kept = position.offset.min(*first_kept);
        }
        let verdict = self.assembly.message(&position, payload.len());
        match verdict.map_err(|text| sample_error(sample, text))? {
            Verdict::Take { skipped_bytes } => {
                self.messages += 1;
                self.has_advanced = true;
                self.missing_since = self.assembly.ahead.map(|_| Instant::now());
                self.output.write(&payload[skipped_bytes..])?;
                Ok(false)
            }
            Verdict::Repeat => Ok(false),
            Verdict::Ahead => {
                self.missing_since.get_or_insert_with(Instant::now);
                Ok(false)
            }
            Verdict::Ended if is_reply => Ok(true),
            Verdict::Ended => {
                let until = Instant::now() + ANSWER_LIMIT;
                self.ended_until.get_or_insert(until);
                Ok(false)
            }
        }
    }

    fn plain_sample(&mut self, sample: &Sample, payload: &[u8]) -> Result<(), BridgeError> {
        let tokens = match self.args.cdr {
            false => payload,
            true => without_cdr_header(payload).map_err(|text| sample_error(sample, text))?,
        };
        let accepted = self.assembly.plain_sample(tokens.len());
        accepted.map_err(|text| sample_error(sample, text))?;
        self.messages += 1;
        self.output.write(tokens)
    }

    /// Asks for what is missing or may be, and says how far this reader is.
    fn keep_in_step(&mut self) -> Result<(), BridgeError> {
        if self.assembly.is_plain() {
            return Ok(());
        }
        if self
            .asked
            .is_some_and(|asked| asked.elapsed() >= 2 * ANSWER_LIMIT)
        {
            // Zenoh has forgotten it.
            self.asked = None;
        }

        let missing_for = self.missing_since.map(|since| since.elapsed());
        if missing_for.is_some_and(|time| time >= self.args.wait) {
            return self.give_up("nobody has sent them within --wait");
        }
        let is_missing = self.assembly.ahead.is_some();
        let is_silent = self.last_message.elapsed() >= ASK_EVERY;
        let lacks_something = is_missing || is_silent || self.ended_until.is_some();
        // Nobody is asked without a pause for what nobody has sent.
        let may_ask = self.has_advanced || self.last_asked.elapsed() >= ASK_AGAIN_AFTER;
        if self.asked.is_none() && lacks_something && may_ask {
            return self.ask(Kind::Want);
        }
        let [next, reported] = [self.assembly.next, self.reported].map(Option::unwrap_or_default);
        let new_bytes = next.saturating_sub(reported);
        let is_due = new_bytes > 0 && self.last_report.elapsed() >= REPORT_EVERY;
        match is_due || new_bytes >= REPORT_BYTES {
            true => self.ask(Kind::Have),
            false => Ok(()),
        }
    }

    /// A question was answered: nothing came, and somebody said that it is not kept any more.
    fn judge_missing(&mut self) -> Result<(), BridgeError> {
        match self.first_kept {
            Some(_) if !self.has_advanced => self.give_up("their sink has not kept them"),
            _ => Ok(()),
        }
    }

    fn give_up(&mut self, why: &str) -> Result<(), BridgeError> {
        let next = self.assembly.next.unwrap_or(0);
        let known = self.first_kept.or(self.assembly.ahead).unwrap_or(next);
        let token_bytes = u64::from(self.args.token_bytes);
        let gap = BridgeError::Gap {
            key: self.key.to_string(),
            run: self
                .assembly
                .run
                .as_ref()
                .map_or_else(String::new, RunName::to_string),
            first: next / token_bytes,
            last: (known / token_bytes).saturating_sub(1),
            why: why.to_owned(),
        };
        if !self.args.lossy {
            return Err(gap);
        }
        // With --quiet too: nothing is lost in silence.
        eprintln!("zbmd-zenoh: {gap}");
        self.assembly.give_up_missing(self.first_kept);
        self.missing_since = None;
        self.first_kept = None;
        Ok(())
    }

    fn ask(&mut self, kind: Kind) -> Result<(), BridgeError> {
        let Some(offset) = self.assembly.next else {
            return Ok(());
        };
        // The sink may forget what is before the offset.
        self.output.flush()?;
        let run = self.assembly.run.clone();
        let attachment = Position { kind, offset, run }.encode();
        let question = self
            .session
            .get(&self.key)
            .target(QueryTarget::All)
            // All replies have the same key: without this, only one would come.
            .consolidation(ConsolidationMode::None)
            .congestion_control(CongestionControl::Block)
            .timeout(ANSWER_LIMIT)
            .payload(self.reader_name.clone())
            .attachment(attachment);
        self.last_report = Instant::now();
        self.reported = Some(offset);
        let sent = match kind {
            Kind::Want => {
                let now = Instant::now();
                self.asked = Some(now);
                self.last_asked = now;
                self.last_message = now;
                self.first_kept = None;
                self.has_advanced = false;
                let guard = AnswerGuard(self.sender.clone());
                let callback = move |reply: zenoh::query::Reply| {
                    if let Ok(sample) = reply.into_result() {
                        let _ = guard.0.send(Arrival::Reply(sample));
                    }
                };
                question.callback(callback).wait()
            }
            _ => question.callback(drop).wait(),
        };
        sent.map_err(BridgeError::of_zenoh("asking the sink"))
    }

    fn summarise(&self) {
        let token_bytes = u64::from(self.args.token_bytes);
        let deletions = match self.deletions {
            0 => String::new(),
            count => format!("; {count} deletions of the key ignored"),
        };
        let text = format!(
            "`{}`: {} tokens in {} messages; {} repeated tokens dropped, {} lost{deletions}",
            self.key,
            self.output.written_bytes() / token_bytes,
            self.messages,
            self.assembly.repeated_bytes / token_bytes,
            self.assembly.lost_bytes / token_bytes,
        );
        self.say(&text);
    }

    fn say(&self, text: &str) {
        if !self.args.network.quiet {
            eprintln!("zbmd-zenoh: {text}");
        }
    }
}

fn sample_error(sample: &Sample, text: String) -> BridgeError {
    let key = Cow::from(sample.key_expr().as_str()).into_owned();
    BridgeError::Sample { key, text }
}

/// The data of a message of ROS 2.
fn without_cdr_header(payload: &[u8]) -> Result<&[u8], String> {
    let (header, data) = payload.split_at_checked(CDR_HEADER_BYTES).ok_or_else(|| {
        format!(
            "has {} bytes, and --cdr expects {CDR_HEADER_BYTES} before the data: leave out --cdr if these are no messages of ROS 2",
            payload.len()
        )
    })?;
    match header.starts_with(&CDR_LITTLE_ENDIAN) {
        true => Ok(data),
        false => Err(format!(
            "begins with {header:02x?}, and --cdr expects {CDR_LITTLE_ENDIAN:02x?} (CDR, little-endian): leave out --cdr, or have the publisher write that"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_cdr_is_checked_and_removed() {
        assert_eq!(without_cdr_header(&[0, 1, 0, 0, 7, 8]), Ok(&[7, 8][..]));
        assert_eq!(without_cdr_header(&[0, 1, 0, 3]), Ok(&[][..]));
        for (payload, expect) in [
            (&[][..], "has 0 bytes"),
            (&[0, 1, 0], "has 3 bytes"),
            (&[0, 0, 0, 0, 1], "begins with [00, 00, 00, 00]"),
            (&[0, 3, 0, 0], "begins with [00, 03"),
        ] {
            let error = without_cdr_header(payload).expect_err(expect);
            assert!(error.contains(expect), "{error}");
        }
    }
}
