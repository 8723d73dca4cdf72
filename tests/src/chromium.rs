//! A browser without a window, driven over pipes by the protocol of Chromium's developer tools, for tests of pages.
//!
//! Panics where something fails: callers are tests, and the message is all that is wanted.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one page; killed when it is dropped.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// What its page is called in commands.
    session: Value,
    number: u64,
}

impl Browser {
    /// Starts one that keeps its files in this folder; `None` if there is no `chromium` on the path.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start(folder: &Path) -> Option<Self> {
        let version = Command::new("chromium").arg("--version").output().ok()?;
        assert!(version.status.success(), "{version:?}");
        // The protocol is spoken over descriptors 3 and 4.
        let script = "exec chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-pipe \
            --user-data-dir=\"$0\" about:blank 3<&0 4>&1 >/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let commands = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut browser = Self {
            child,
            commands,
            answers,
            session: Value::Null,
            number: 0,
        };
        let made = browser.command("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": made["targetId"], "flatten": true });
        browser.session = browser.command("Target.attachToTarget", &target)["sessionId"].clone();
        Some(browser)
    }

    /// Goes to an address.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn open(&mut self, url: &str) {
        self.command("Page.navigate", &json!({ "url": url }));
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "returnByValue": true });
        let answer = self.command("Runtime.evaluate", &wanted);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.evaluate(expression) != true {
            if begun.elapsed() > LIMIT {
                let page = self.evaluate("document.body?.innerText ?? ''");
                panic!("not so: {expression}; the page says {page}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn command(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let text = message.to_string() + "\0";
        self.commands.write_all(text.as_bytes()).expect("taken");
        loop {
            let mut answer = Vec::new();
            let count = self.answers.read_until(0, &mut answer).expect("an answer");
            assert!(count > 0, "the browser has ended");
            let answer: Value = serde_json::from_slice(&answer[..count - 1]).expect("JSON");
            // Events come in between.
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
