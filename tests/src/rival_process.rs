//! The program of a rival beside a benchmark: it is asked a line, and answers with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A rival that was started. It ends with its standard input.
pub struct RivalProcess {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl RivalProcess {
    /// Starts a program.
    ///
    /// # Errors
    /// Why the system does not start it.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (ask, answers) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Ok(Self {
            child,
            ask,
            answers: BufReader::new(answers),
        })
    }

    /// Its next line; empty if it has ended.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let _ = self.answers.read_line(&mut line);
        line.trim().to_owned()
    }

    /// Its answer to a question.
    ///
    /// # Errors
    /// It takes none any more.
    pub fn ask(&mut self, question: &str) -> std::io::Result<String> {
        let ask = self.ask.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(ask, "{question}")?;
        Ok(self.answer())
    }

    /// Seconds of one of so many calls, where it runs a model and that is the question.
    pub fn seconds(&mut self, calls: u64) -> Option<f64> {
        self.ask(&calls.to_string()).ok()?.parse().ok()
    }

    /// Seconds in which it makes its session of the model anew and calls it once, where that is a question.
    pub fn make_seconds(&mut self) -> Option<f64> {
        self.ask("make").ok()?.parse().ok()
    }

    /// Ends it; what it says last.
    pub fn finish(mut self) -> String {
        self.ask = None;
        self.answer()
    }
}

impl Drop for RivalProcess {
    fn drop(&mut self) {
        self.ask = None;
        let _ = self.child.wait();
    }
}
