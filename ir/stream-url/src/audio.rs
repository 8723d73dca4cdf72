//! URLs of sound cards, and of files of what a sound card was given.

use std::path::PathBuf;
use std::time::Duration;

use super::{Parts, UrlError, read_time};

/// Keys of an `audio` sink.
pub(super) const CARD_SINK_KEYS: [&str; 4] = ["rate", "latency", "clock", "record"];
const DEFAULT_LATENCY: Duration = Duration::from_millis(50);

/// What the ratio of a clock bridge follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFollowing {
    /// The source has a clock of its own.
    Source,
    /// The source gives frames as the sink asks for them: the ratio is that of the nominal rates.
    Nominal,
}

/// A sound card as a URL describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioCard {
    /// Its name, as the system's list has it; empty for the default one.
    pub device: String,
    /// A sink: frames a second. (A source has the key in common with the others.)
    pub rate: Option<f64>,
    /// How long a frame waits for the card, without the card's own buffer, which is half of this.
    pub latency: Duration,
    /// A sink: what the ratio of its bridge follows.
    pub following: Option<ClockFollowing>,
    /// A sink: where the record of its bridge goes.
    pub record: Option<PathBuf>,
}

/// The file of a sink that replays a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeReplay {
    /// Frames go there.
    pub path: PathBuf,
    /// The record that an `audio` sink has written.
    pub record: PathBuf,
}

impl Parts<'_> {
    /// The sound card of a source or a sink.
    pub(super) fn card(&self, is_sink: bool) -> Result<AudioCard, UrlError> {
        let read_clock = |text: &str| match text {
            "source" => Some(ClockFollowing::Source),
            "card" => Some(ClockFollowing::Nominal),
            _ => None,
        };
        let latency = self.value("latency", "a time from 1ms to 1h: 20ms", read_time)?;
        Ok(AudioCard {
            device: match self.place {
                "default" => String::new(),
                name => name.to_owned(),
            },
            rate: if is_sink { self.rate()? } else { None },
            latency: latency.unwrap_or(DEFAULT_LATENCY),
            following: self.value("clock", "source, card", read_clock)?,
            record: self.text("record").map(PathBuf::from),
        })
    }

    /// What a sink replays.
    pub(super) fn bridge_replay(&self) -> Result<BridgeReplay, UrlError> {
        let missing = |key, why| UrlError::Missing {
            key,
            why,
            allowed: "bridge:PATH?replay=RECORD",
        };
        if self.place.is_empty() {
            return Err(missing("PATH", "the frames go to a file"));
        }
        let record = self.text("replay");
        let record = record.ok_or_else(|| missing("replay", "it says by which ratios"))?;
        Ok(BridgeReplay {
            path: self.place.into(),
            record: record.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Endpoint, SinkUrl, SourceUrl};
    use super::*;

    #[test]
    fn sound_cards_are_read() {
        let url = "audio:hw:CARD=0,DEV=0?rate=44100&latency=20ms&clock=card&record=a%20b.txt";
        let url = SinkUrl::parse(url).expect("right");
        let card = AudioCard {
            device: "hw:CARD=0,DEV=0".to_owned(),
            rate: Some(44.1e3),
            latency: Duration::from_millis(20),
            following: Some(ClockFollowing::Nominal),
            record: Some("a b.txt".into()),
        };
        assert_eq!(url.endpoint, Endpoint::Audio(card));

        let url = SourceUrl::parse("audio:default?rate=48000&silence=stall").expect("right");
        let Endpoint::Audio(card) = url.endpoint else {
            panic!("another endpoint");
        };
        assert_eq!((card.device.as_str(), card.rate), ("", None));
        assert_eq!(url.rate, Some(48e3));

        let url = SinkUrl::parse("bridge:out.f32?replay=ratios.txt").expect("right");
        let replay = BridgeReplay {
            path: "out.f32".into(),
            record: "ratios.txt".into(),
        };
        assert_eq!(url.endpoint, Endpoint::BridgeReplay(replay));
    }

    #[test]
    fn sound_cards_that_make_no_sense_are_refused() {
        let error = |text| SinkUrl::parse(text).expect_err(text).to_string();
        assert!(error("audio:?clock=mine").contains("allowed: source, card"));
        assert!(error("audio:?header=seq").contains("allowed: rate, latency, clock, record"));
        assert!(error("bridge:a.f32").contains("the key `replay` is missing"));
        assert!(error("bridge:?replay=a").contains("bridge:PATH?replay=RECORD"));
        let error = SourceUrl::parse("audio:?clock=card").expect_err("a sink's key");
        assert!(error.to_string().contains("no key `clock` for sources"));
    }
}
