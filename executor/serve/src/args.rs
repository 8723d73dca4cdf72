//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use zbmd_executor::Isolation;

const AFTER_HELP: &str = "\
Examples:
  zbmdc compile graphs/simple/model.ron --block 1 -o models/simple.zbmd
  zbmd-serve models
  zbmd-serve models --devices 1                             models/mnist.onnx, compiled for one device
  zbmd-serve models --buckets 1,2,4,8                       and for batches, which requests that wait are computed in
  zbmd-serve models --listen 127.0.0.1:9000 --isolation threads --queue 64
  curl http://127.0.0.1:8000/v2/models/simple

The protocol is the Open Inference Protocol, version 2, over HTTP, with binary tensors, and as gRPC; `/metrics` is for Prometheus.

Exit codes:
  0    ended by SIGTERM or an interrupt, and all that was admitted is answered
  2    the command line is wrong
  3    a model, or the machine, is wrong: it does not compile
  4    a file cannot be read, or the address is not to be had
  5    a bundle is refused
  6    too little memory or threads, or no right to real time
  7    every model failed too often and was given up
  70   our bug
  130  a second signal came, or requests were left when the time to drain was over";

/// Answers inference requests over HTTP and gRPC with bundles and ONNX models. Lost workers make answers slower and not wrong.
#[derive(Debug, Parser)]
#[command(name = "zbmd-serve", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A folder of models: `NAME.zbmd`, a bundle made by `zbmdc compile`, is the model `NAME`, and so is `NAME.onnx` or
    /// `NAME.ron`, which the server compiles itself
    pub(crate) folder: PathBuf,
    #[cfg(feature = "compile")]
    #[command(flatten)]
    pub(crate) compile: CompileArgs,
    /// Address and port to listen at; port 0 is one that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub(crate) listen: SocketAddr,
    /// Port of the same address for gRPC; port 0 is one that is free
    #[cfg(feature = "grpc")]
    #[arg(long, value_name = "PORT", default_value_t = 8001)]
    grpc_port: u16,
    /// Do not listen for gRPC
    #[cfg(feature = "grpc")]
    #[arg(long, conflicts_with = "grpc_port")]
    no_grpc: bool,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Let only clients in that show a bearer token: a file with the SHA-256 hash of one in each line, as `sha256sum` writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Allow an address, or a collector's, that others can reach without encryption or without knowing who they are: only in a network, or behind a
    /// proxy, that you trust
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// Let clients of this computer register POSIX shared memory, and have tensors there instead of in bodies
    #[arg(long)]
    pub(crate) shared_memory: bool,
    /// Let clients load models of the folder anew, and unload them
    #[arg(long)]
    pub(crate) model_control: bool,
    /// Send a span of each request and each epoch to a collector of OpenTelemetry's protocol, over HTTP: `http://127.0.0.1:4318`
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// What the server calls itself in its metadata, for clients that look at it
    #[arg(long, value_name = "NAME", default_value = crate::description::NAME)]
    pub(crate) server_name: String,
    /// Requests of each model that may wait; one more is refused
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) queue: u32,
    /// Sequences of each model that keeps a state; a request that starts one more is refused
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sequences: u32,
    /// Forget a sequence that nothing is asked of for so long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) sequence_idle: Duration,
    /// Where workers run: in threads of this process, or in a process of its own each GPU, or each device
    #[arg(long, value_name = "WHERE", default_value = "processes")]
    pub(crate) isolation: Where,
    /// Keep no second process ready to take the place of each worker that is one: less memory, longer recoveries
    #[arg(long)]
    pub(crate) no_standby: bool,
    /// Tie workers to their devices' cores. For one model on a machine of its own
    #[arg(long)]
    pub(crate) pin: bool,
    /// Run workers, and all threads that requests pass through, before all ordinary threads of the system (SCHED_FIFO), with all memory
    /// locked. Refused, with what is missing, where the system does not allow it
    #[cfg(target_os = "linux")]
    #[arg(long)]
    realtime: bool,
    /// Threads for connections
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) http_threads: u32,
    /// Connections at once; one more is told 503 and closed
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub(crate) connections: u32,
    /// Close a connection that has not sent the header of a request after so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) header_timeout: Duration,
    /// Refuse a request whose body is not there so long after its header
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) body_timeout: Duration,
    /// Close a connection whose client has not read all of an answer after so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) write_timeout: Duration,
    /// After SIGTERM, wait so long at most for answers to what was admitted
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) drain: Duration,
    /// Say nothing but errors
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[cfg(feature = "grpc")]
impl Args {
    /// Where to listen for gRPC, if anywhere.
    pub(crate) fn grpc_address(&self) -> Option<SocketAddr> {
        let address = SocketAddr::new(self.listen.ip(), self.grpc_port);
        (!self.no_grpc).then_some(address)
    }
}

/// How connections are encrypted.
#[cfg(feature = "tls")]
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// Encrypt connections with this certificate, a PEM file, which may have those of its authorities behind it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Let only clients in that show a certificate of one of these authorities, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
}

#[cfg(feature = "tls")]
impl TlsArgs {
    /// The files of keys and certificates, if connections are encrypted.
    pub(crate) fn files(&self) -> Option<crate::tls::TlsFiles<'_>> {
        Some(crate::tls::TlsFiles {
            certificate: self.tls_certificate.as_deref()?,
            key: self.tls_key.as_deref()?,
            client_authorities: self.tls_client_ca.as_deref(),
        })
    }
}

impl Args {
    /// Threads have real-time priorities.
    pub(crate) fn is_realtime(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.realtime;
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Connections are encrypted, and only known clients are let in.
    pub(crate) fn is_secured(&self) -> bool {
        #[cfg(feature = "tls")]
        {
            let files = self.tls.files();
            files.is_some_and(|files| self.tokens.is_some() || files.client_authorities.is_some())
        }
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// What models that are no bundles are compiled for.
#[cfg(feature = "compile")]
#[derive(Debug, clap::Args)]
pub(crate) struct CompileArgs {
    /// Compile models for the devices and links of a machine file; by default for the CPUs of this computer
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    machine: Option<PathBuf>,
    /// Compile models for N like CPU devices. With one a model is no pipeline, and responses are shortest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    devices: Option<u16>,
    /// Compile ONNX models for several batch sizes, a mode for each: requests that wait are computed together where that is quicker
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub(crate) buckets: Vec<u32>,
}

#[cfg(feature = "compile")]
impl CompileArgs {
    pub(crate) fn machine(&self) -> zbmd_compiler::MachineChoice {
        use zbmd_compiler::MachineChoice;

        match (&self.machine, self.devices) {
            (Some(file), _) => MachineChoice::File(file.clone()),
            (None, Some(devices)) => MachineChoice::Uniform(devices.into()),
            (None, None) => MachineChoice::Detect,
        }
    }
}

/// Where workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Where {
    Threads,
    Processes,
    Gpus,
}

impl Where {
    pub(crate) const fn isolation(self) -> Isolation {
        match self {
            Self::Threads => Isolation::Threads,
            Self::Processes => Isolation::Processes { program: None },
            Self::Gpus => Isolation::GpuProcesses { program: None },
        }
    }
}

/// A time such as `500ms`, `5s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|character: char| character.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("write a whole number and ms, s or m".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "it is not a whole number of ms, s or m")?;
    let in_a_day = number
        .checked_mul(millis)
        .filter(|ms| (1..=86_400_000).contains(ms));
    let total_ms = in_a_day.ok_or("it must be from 1ms to a day")?;
    Ok(Duration::from_millis(total_ms))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_are_read() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in [
            "",
            "5",
            "s",
            "-5s",
            "1.5s",
            "0s",
            "5h",
            "99999999999999999999s",
            "2000m",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
