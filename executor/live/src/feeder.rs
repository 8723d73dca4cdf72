//! The loop of a live source: receive, put in order, give to the run. It ends when the run takes no more, or a file that
//! is played ends; never because a peer went.

use zbmd_ir::TokenType;

use crate::buffer::PacketPool;
use crate::clock::{as_ns, now_ns};
use crate::deliver::{ConsumerClosed, Delivery, DeliverySettings, TokenConsumer};
use crate::report::{EventListener, GapLog, LiveEvent, SharedReport};
use crate::source::{Arrival, LiveSource};
use crate::timeline::{Packet, Silence, Step, Timeline, TimelineSettings};
use crate::url::{Endpoint, Header, QueueFull, SourceUrl, UrlError};

/// How long the run's end is not looked for.
const MAX_RECEIVE_NS: u64 = 20_000_000;
/// How long tokens wait that the run did not take at once.
const BACKLOG_RECEIVE_NS: u64 = 1_000_000;
/// Memory of a queue where its URL does not say.
const DEFAULT_QUEUE_BYTES: u64 = 4 << 20;
/// The byte of an unsigned sample that is zero: 127 and 128 are as close to it.
const UNSIGNED_ZERO: u8 = 127;

/// How a feeder came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeederEnd {
    /// The run takes no more.
    Closed,
    /// The file that was played ended, and all of it was given to the run.
    SourceEnded,
}

/// Why a source cannot be fed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FeederError {
    /// Its URL lacks something.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Samples of another kind than the tokens.
    #[error("gives samples of two bytes, I and Q; the tokens are {token}: use u8 or u8[2]")]
    Token {
        /// Type of the tokens.
        token: TokenType,
    },
    /// Samples for tokens that are bursts.
    #[error("gives samples; the tokens are {token}: bursts come from files")]
    Bursts {
        /// Type of the tokens.
        token: TokenType,
    },
}

/// Feeds one source.
pub struct Feeder {
    source: Box<dyn LiveSource>,
    intake: Intake,
}

/// What becomes of what was received.
struct Intake {
    timeline: Timeline<Vec<u8>>,
    delivery: Delivery,
    pool: PacketPool,
    gaps: GapLog,
    report: SharedReport,
    token_bytes: usize,
    refused: u64,
    kernel_drops: u64,
    has_ended: bool,
}

/// What a feeder needs besides a source.
pub struct FeederParts {
    /// Type of the source's tokens.
    pub token: TokenType,
    /// Tokens a second by the model, if it says so.
    pub model_rate: Option<f64>,
    /// Takes the tokens.
    pub consumer: Box<dyn TokenConsumer>,
    /// Takes a flag for each token: 0 if it was received, 1 if it was filled.
    pub flags: Option<Box<dyn TokenConsumer>>,
    /// Is told of gaps and connections.
    pub listener: Option<EventListener>,
    /// Is updated.
    pub report: SharedReport,
}

/// Tokens a second of a source, from its URL or else the model.
///
/// # Errors
/// Samples of `rtl_tcp` that tokens cannot hold.
pub fn token_rate(
    url: &SourceUrl,
    token: &TokenType,
    model_rate: Option<f64>,
) -> Result<Option<f64>, FeederError> {
    if token.burst {
        return Err(FeederError::Bursts {
            token: token.clone(),
        });
    }
    let Endpoint::RtlTcp(..) = url.endpoint else {
        return Ok(url.rate.or(model_rate));
    };
    let token_bytes = token.bytes();
    let is_sample_bytes = token.dtype == zbmd_ir::DType::U8;
    if !is_sample_bytes || !(token_bytes == 1 || token_bytes.is_multiple_of(2)) {
        return Err(FeederError::Token {
            token: token.clone(),
        });
    }
    let from_url = url.rate.map(|samples| samples * 2.0 / token_bytes as f64);
    Ok(from_url.or(model_rate))
}

/// How the timeline of a source decides.
pub(crate) fn timeline_settings(
    url: &SourceUrl,
    rate: Option<f64>,
) -> Result<TimelineSettings, FeederError> {
    let is_file = matches!(url.endpoint, Endpoint::Paced(_) | Endpoint::Recording(_));
    let fills = url.fills_silence.unwrap_or(rate.is_some() && !is_file);
    if fills && rate.is_none() {
        let why = "only with it is known how many tokens silence has";
        return Err(SourceUrl::rate_is_missing(why).into());
    }
    let has_time_stamps = matches!(
        url.endpoint,
        Endpoint::Udp {
            header: Header::Vita49,
            ..
        } | Endpoint::Soapy(_)
    );
    Ok(TimelineSettings {
        rate,
        silence: if fills { Silence::Fill } else { Silence::Stall },
        limit_ns: as_ns(url.limit),
        window: url.window,
        tolerance: u64::from(has_time_stamps),
    })
}

impl Feeder {
    /// A feeder for a source that is open.
    ///
    /// # Errors
    /// See [`FeederError`].
    pub fn new(
        url: &SourceUrl,
        source: Box<dyn LiveSource>,
        parts: FeederParts,
    ) -> Result<Self, FeederError> {
        let rate = token_rate(url, &parts.token, parts.model_rate)?;
        let settings = timeline_settings(url, rate)?;
        let token_bytes = parts.token.bytes() as usize;
        let queue = match url.full {
            // It holds what one call of the source gives: nothing more is read before that is taken.
            QueueFull::Wait => u64::MAX,
            _ => url
                .queue
                .unwrap_or((DEFAULT_QUEUE_BYTES / token_bytes as u64).max(1)),
        };
        let has_unsigned_samples = match url.endpoint {
            Endpoint::RtlTcp(..) => true,
            Endpoint::Soapy(_) => parts.token.dtype == zbmd_ir::DType::U8,
            _ => false,
        };
        let delivery_settings = DeliverySettings {
            token_bytes,
            queue,
            full: url.full,
            fill: url.fill.unwrap_or_default(),
            zero: if has_unsigned_samples {
                UNSIGNED_ZERO
            } else {
                0
            },
        };

        parts.report.locked().rate = rate;
        let is_connected = !source.has_connections();
        let stream = parts.report.get().stream;
        let intake = Intake {
            timeline: Timeline::new(settings, now_ns(), is_connected),
            delivery: Delivery::new(&delivery_settings, parts.consumer, parts.flags),
            pool: PacketPool::default(),
            gaps: GapLog::new(&stream, parts.report.clone(), parts.listener),
            report: parts.report,
            token_bytes,
            refused: 0,
            kernel_drops: 0,
            has_ended: false,
        };
        Ok(Self { source, intake })
    }

    /// Feeds until the run takes no more, or `is_stopping` says that it ends.
    pub fn run(mut self, is_stopping: &dyn Fn() -> bool) -> FeederEnd {
        loop {
            match self.step(is_stopping) {
                Ok(true) => {}
                Ok(false) => {
                    self.finish();
                    return FeederEnd::SourceEnded;
                }
                Err(ConsumerClosed) => {
                    self.finish();
                    return FeederEnd::Closed;
                }
            }
        }
    }

    fn finish(&mut self) {
        self.intake.publish();
        self.intake.report.locked().release_lateness = self.source.release_lateness();
    }

    /// Receives once; whether there may be more.
    fn step(&mut self, is_stopping: &dyn Fn() -> bool) -> Result<bool, ConsumerClosed> {
        let intake = &mut self.intake;
        if is_stopping() {
            return Err(ConsumerClosed);
        }
        if intake.delivery.must_wait() || (intake.has_ended && intake.delivery.has_backlog()) {
            intake.delivery.wait()?;
            intake.publish();
            return Ok(true);
        }
        if intake.has_ended {
            return Ok(false);
        }

        let limit_ns = match intake.delivery.has_backlog() {
            true => BACKLOG_RECEIVE_NS,
            false => MAX_RECEIVE_NS,
        };
        let mut outcome = Ok(());
        self.source.receive(limit_ns, &mut |arrival| {
            if outcome.is_ok() {
                outcome = intake.take(arrival);
            }
        });
        outcome?;

        intake.timeline.tick(now_ns());
        intake.deliver(&[])?;
        intake.delivery.flush()?;
        intake.publish();
        Ok(true)
    }
}

impl Intake {
    fn take(&mut self, arrival: Arrival<'_>) -> Result<(), ConsumerClosed> {
        match arrival {
            Arrival::Packet {
                place,
                payload,
                arrival_ns,
                kernel_drops,
            } => {
                self.kernel_drops += kernel_drops;
                let packet = Packet {
                    place,
                    tokens: (payload.len() / self.token_bytes) as u64,
                    arrival_ns,
                    kernel_drops,
                };
                let pool = &mut self.pool;
                self.timeline.packet(&packet, || pool.keep(payload));
                return self.deliver(payload);
            }
            Arrival::Missing {
                tokens,
                cause,
                fill,
            } => {
                self.delivery.fill_with(fill);
                self.timeline.missing(tokens, cause);
                return self.deliver(&[]);
            }
            Arrival::Refused => self.refused += 1,
            Arrival::SampleRate(rate) => self.report.locked().stated_rate = Some(rate),
            Arrival::Connected => {
                self.timeline.connected();
                self.report.locked().connections += 1;
                self.gaps.tell(|stream| LiveEvent::Connected { stream });
            }
            Arrival::Disconnected => {
                self.timeline.disconnected();
                self.gaps.tell(|stream| LiveEvent::Disconnected { stream });
                return self.deliver(&[]);
            }
            Arrival::Ended => self.has_ended = true,
        }
        Ok(())
    }

    /// Does what the timeline says; `payload` is of the packet that was just handed in.
    fn deliver(&mut self, payload: &[u8]) -> Result<(), ConsumerClosed> {
        let token_bytes = self.token_bytes;
        let part = |bytes: &[u8], skip: u64, take: u64| {
            let begin = skip as usize * token_bytes;
            begin..(begin + take as usize * token_bytes).min(bytes.len())
        };
        while let Some(step) = self.timeline.next_step() {
            let gaps = &mut self.gaps;
            match step {
                Step::Current { skip, take } => {
                    let tokens = &payload[part(payload, skip, take)];
                    self.delivery.tokens(tokens, |gap| gaps.add(gap))?;
                }
                Step::Kept { packet, skip, take } => {
                    let tokens = &packet[part(&packet, skip, take)];
                    self.delivery.tokens(tokens, |gap| gaps.add(gap))?;
                    self.pool.give_back(packet);
                }
                Step::Fill(gap) => {
                    gaps.add(gap);
                    self.delivery.fill(gap.length)?;
                }
                Step::Discard(packet) => self.pool.give_back(packet),
            }
        }
        Ok(())
    }

    /// Brings the report up to date.
    fn publish(&mut self) {
        self.gaps.close_before(self.delivery.given());
        let counts = *self.timeline.counts();
        let mut report = self.report.locked();
        report.packets = counts.packets;
        report.received = counts.received;
        report.repeats = counts.repeats;
        report.late = counts.late;
        report.stray = counts.stray;
        report.reordered_packets = counts.reordered_packets;
        report.restarts = counts.restarts;
        report.given = self.delivery.given();
        report.refused = self.refused;
        report.kernel_drops = self.kernel_drops;
    }
}
