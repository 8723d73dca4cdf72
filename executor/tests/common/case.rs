//! The command in a folder of its own: a bundle, its input, and what it should make of it.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use zbmd_ir::{Program, bundle};

use super::{inputs, interpreter, runner, text, verified};

/// A folder with a bundle in it.
pub(crate) struct Case {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) program: Program,
}

impl Case {
    pub(crate) fn new(program: Program) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        bundle::write(
            &folder.path().join("model.zbmd"),
            &verified(program.clone()),
        )
        .expect("written");
        Self { folder, program }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes tokens for the source `in` to a file; what the interpreter makes of them.
    pub(crate) fn input(&self, file: &str, tokens: u64) -> Vec<u8> {
        let given = inputs(&self.program, tokens);
        std::fs::write(self.path(file), &given["in"]).expect("written");
        let mut expect = interpreter(&self.program).run(&given, None).expect("runs");
        expect.outputs.remove("out").expect("a sink")
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(runner());
        command
            .current_dir(self.folder.path())
            .arg("model.zbmd")
            .args(args);
        command
    }

    /// Started with both streams as pipes, and a report of that format.
    pub(crate) fn piped(&self, report: &str) -> Child {
        self.command(&["-i", "in=-", "-o", "out=-", "--report", report])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("started")
    }
}

pub(crate) fn code(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("{}: {}", output.status, text(&output.stderr)))
}

impl Case {
    /// Runs with these arguments, and expects that exit code; what it said.
    pub(crate) fn expect(&self, expected_code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let said = text(&output.stderr);
        assert_eq!(code(&output), expected_code, "{args:?}: {said}");
        said
    }

    /// The same from a shell, which sets limits or redirects first: `{}` stands for the command.
    pub(crate) fn shell(&self, script: &str, args: &[&str]) -> Output {
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        let mut command = quoted(&runner().to_string_lossy());
        for word in ["model.zbmd"].iter().chain(args) {
            command.push(' ');
            command.push_str(&quoted(word));
        }
        Command::new("sh")
            .current_dir(self.folder.path())
            .args(["-c", &script.replace("{}", &command)])
            .output()
            .expect("a shell")
    }

    /// A file's bytes.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("written");
    }

    /// Files with these names in the folder are pipes with names.
    pub(crate) fn make_pipe(&self, name: &str) {
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            self.path(name),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        );
        made.expect("a pipe");
    }
}
