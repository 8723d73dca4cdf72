//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::RunName;

/// The longest message: what Zenoh would have to hold in one piece.
const MAX_MESSAGE_BYTES: u64 = 64 << 20;

/// A bridge between runs of zbmd and Zenoh, and so to robots.
#[derive(Debug, Parser)]
#[command(name = "zbmd-zenoh", version, after_help = AFTER_HELP)]
pub struct Command {
    /// The direction.
    #[command(subcommand)]
    pub direction: Direction,
}

/// From a run to Zenoh, or the other way.
#[derive(Debug, Subcommand)]
pub enum Direction {
    /// Publish the tokens of a sink on a key.
    Sink(SinkArgs),
    /// Hand on what is published on a key as the tokens of a source.
    Source(SourceArgs),
}

/// Options of both directions.
#[derive(Args, Clone, Debug, Default)]
pub struct NetworkArgs {
    /// Connect to a router or peer, `tcp/HOST:PORT`; within 10 s it must answer. May be given several times. Without --connect,
    /// --listen and --config, peers are looked for by multicast, as is Zenoh's default.
    #[arg(long, value_name = "ENDPOINT")]
    pub connect: Vec<String>,
    /// Listen for peers at `tcp/ADDRESS:PORT`. May be given several times.
    #[arg(long, value_name = "ENDPOINT")]
    pub listen: Vec<String>,
    /// Take a configuration file of Zenoh (JSON5) instead, which may also say certificates and access rights.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["connect", "listen"])]
    pub config: Option<PathBuf>,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Options of `zbmd-zenoh sink`.
#[derive(Args, Clone, Debug)]
pub struct SinkArgs {
    /// The key to publish on.
    #[arg(value_name = "KEY")]
    pub key: String,
    /// What to publish: a file of raw tokens, or a pipe; `-` is standard input. A file can be read again from anywhere, so
    /// readers are sent whatever they lack.
    #[arg(value_name = "FILE", default_value = "-")]
    pub input: PathBuf,
    /// Bytes of a token.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_MESSAGE_BYTES as i64))]
    pub token_bytes: u32,
    /// Tokens of a message; the last one may have fewer. A message has at most 64 MiB.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub message_tokens: u32,
    /// The name of the run, the same whenever the same tokens are published again: readers drop what comes twice by it.
    /// Without it the name is a new one at each start.
    #[arg(long, value_name = "NAME")]
    pub run: Option<RunName>,
    /// The number of the input's first token, where another process published those before it, as of a run that was taken over.
    #[arg(long, value_name = "TOKEN", default_value_t = 0)]
    pub first_token: u64,
    /// The end of the input is not the end of the run: wait for a file to grow until a signal comes, and at the end of a pipe say
    /// nothing of an end.
    #[arg(long)]
    pub follow: bool,
    /// Begin when so many bridges read, end when as many have everything, and take no more from a pipe meanwhile than can be
    /// sent to them again.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub readers: usize,
    /// Of a pipe, keep the last so many MiB for readers that lack them.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub keep: u32,
    /// The network.
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// Options of `zbmd-zenoh source`.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// The key expression to read, such as `robot/lidar` or `0/chatter/**`.
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Where to: a pipe, or a file, which is gone on with where it ends; `-` is standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
    /// Bytes of a token: payloads that are no multiple of it are refused.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub token_bytes: u32,
    /// Take only messages of this run; without it the first message says which run it is.
    #[arg(long, value_name = "NAME")]
    pub run: Option<RunName>,
    /// The token of the run to begin with, or `now` for whatever comes first. Only messages of bridges have such numbers.
    #[arg(long, value_name = "TOKEN", default_value = "0", value_parser = first)]
    pub from: First,
    /// How long to ask for tokens that are missing: `500ms`, `10s`.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub wait: Duration,
    /// Go on without tokens that nobody has, and count them.
    #[arg(long)]
    pub lossy: bool,
    /// Samples are messages of ROS 2 of a fixed size: check and remove the four bytes before the data of each.
    #[arg(long, conflicts_with = "run")]
    pub cdr: bool,
    /// The network.
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// With this token of the run.
    Token(u64),
    /// With whatever comes first.
    Now,
}

fn first(text: &str) -> Result<First, String> {
    if text == "now" {
        return Ok(First::Now);
    }
    let number = text.parse().map(First::Token);
    number.map_err(|_| "is neither the number of a token nor `now`".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok().filter(|number| *number <= 1_000_000);
    match (number, unit_ms) {
        (Some(number), Some(unit_ms)) => Ok(Duration::from_millis(number * unit_ms)),
        _ => {
            Err("is no time such as 500ms, 10s or 2m, with a number of at most 1000000".to_owned())
        }
    }
}

impl SinkArgs {
    /// Bytes of a whole message.
    ///
    /// # Errors
    /// More than 64 MiB, with both numbers.
    pub fn message_bytes(&self) -> Result<usize, String> {
        let bytes = u64::from(self.token_bytes) * u64::from(self.message_tokens);
        match bytes <= MAX_MESSAGE_BYTES {
            true => Ok(bytes as usize),
            false => Err(format!(
                "a message of {} tokens of {} bytes has {bytes} bytes, at most {MAX_MESSAGE_BYTES} are taken: give fewer --message-tokens",
                self.message_tokens, self.token_bytes
            )),
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  zbmd-run model.zbmd -i in=in.f32 -o out=- |
      zbmd-zenoh sink robot/speed --token-bytes 4 --message-tokens 64 --run drive-7     publishes what a run computes
  zbmd-zenoh source robot/lidar --token-bytes 2880 | zbmd-run model.zbmd -i in=- -o out=out.f32
  zbmd-zenoh source '0/imu/**' --token-bytes 24 --cdr --connect tcp/127.0.0.1:7447      a topic of ROS 2, by its router

Exit codes: 0 all went well; 2 the command line is wrong; 4 a file, a pipe or an endpoint cannot be opened, read or written; 6 a sample
is wrong, or tokens are missing; 130 interrupted.
";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn times_and_beginnings_are_read() {
        for (text, expect) in [
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("2m", Some(120_000)),
            ("0s", Some(0)),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1h", None),
            ("1000001s", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(duration(text).ok().map(|d| d.as_millis()), expect, "{text}");
        }
        assert_eq!(first("now"), Ok(First::Now));
        assert_eq!(first("18446744073709551615"), Ok(First::Token(u64::MAX)));
        for text in ["", "-1", "18446744073709551616", "later"] {
            assert!(first(text).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_have_a_maximum() {
        let args = |token_bytes: &str, tokens: &str| {
            let words = [
                "zbmd-zenoh",
                "sink",
                "k",
                "--token-bytes",
                token_bytes,
                "--message-tokens",
                tokens,
            ];
            match Command::try_parse_from(words).map(|command| command.direction) {
                Ok(Direction::Sink(args)) => args.message_bytes(),
                Ok(Direction::Source(_)) => Err("not a source".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(args("4", "64"), Ok(256));
        assert_eq!(args("67108864", "1"), Ok(64 << 20));
        for (token_bytes, tokens) in [
            ("0", "1"),
            ("1", "0"),
            ("67108865", "1"),
            ("67108864", "2"),
            ("4", "4294967295"),
        ] {
            assert!(args(token_bytes, tokens).is_err(), "{token_bytes} {tokens}");
        }
    }
}
