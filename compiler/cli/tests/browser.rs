//! The page of `zbmdc inspect --format html`, driven in a headless browser as a person would.
//!
//! Needs Chromium or Chrome, found on the path or named by `ZBMD_BROWSER`; skipped loudly without. Speaks Chrome's
//! DevTools protocol over pipes (`--remote-debugging-pipe`): JSON messages that end in a zero byte.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use zbmd_ir::bundle::{self, Meta};
use zbmd_ir::testing::programs;
use zbmd_ir::verify::{verify, verify_modes};
use zbmd_ir::{ActorId, Mode, Modes};

fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("ZBMD_BROWSER").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let all = names
        .iter()
        .flat_map(|name| folders.iter().map(move |f| f.join(name)));
    named.into_iter().chain(all).find(|p| p.is_file())
}

/// A page in a browser of its own.
struct Page {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    last: u64,
    session: String,
    /// Exceptions, errors on the console, and what the page was refused.
    errors: Vec<Value>,
}

impl Page {
    /// Opens a file in a window of that size.
    fn open(browser: &Path, profile: &Path, file: &Path, (width, height): (u32, u32)) -> Page {
        // The protocol is on descriptors 3 and 4. A browser that hangs is ended, so that the test does.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec timeout 300 \"$0\" \"$@\" 3<&0 4>&1 1>/dev/null 2>/dev/null",
            ])
            .arg(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args(["--remote-debugging-pipe", "--no-first-run"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let session = String::new();
        let mut page = Page {
            child,
            to,
            from,
            last: 0,
            session,
            errors: Vec::new(),
        };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = page.call("Target.attachToTarget", attach);
        page.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        page.call("Emulation.setDeviceMetricsOverride", size);
        page.call(
            "Page.navigate",
            json!({ "url": format!("file://{}", file.display()) }),
        );
        page.wait("Page.loadEventFired");
        page.frame();
        page
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from
            .read_until(0, &mut bytes)
            .expect("the browser's pipe");
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        let message: Value = serde_json::from_slice(&bytes).expect("JSON");
        let bad = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            _ => false,
        };
        if bad {
            self.errors.push(message["params"].clone());
        }
        message
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        write!(self.to, "{message}\0")
            .and_then(|()| self.to.flush())
            .expect("the browser's pipe");
        loop {
            let answer = self.read();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    fn wait(&mut self, event: &str) {
        while self.read()["method"] != event {}
    }

    fn eval(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].clone()
    }

    fn number(&mut self, expression: &str) -> f64 {
        self.eval(expression)
            .as_f64()
            .unwrap_or_else(|| panic!("{expression} is no number"))
    }

    /// Until what was asked to be drawn is drawn.
    fn frame(&mut self) {
        self.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut params = json!({ "type": kind, "x": x, "y": y });
        for (key, value) in more.as_object().into_iter().flatten() {
            params[key] = value.clone();
        }
        self.call("Input.dispatchMouseEvent", params);
        self.frame();
    }

    fn click(&mut self, at: (f64, f64)) {
        self.mouse(
            "mousePressed",
            at,
            json!({ "button": "left", "clickCount": 1 }),
        );
        self.mouse(
            "mouseReleased",
            at,
            json!({ "button": "left", "clickCount": 1 }),
        );
    }

    fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = json!({ "Enter": 13, "Escape": 27 })[key].clone();
            let params = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", params);
        }
        self.frame();
    }

    /// Middle of an element, which is scrolled into view.
    fn middle(&mut self, element: &str) -> (f64, f64) {
        self.eval(&format!("{element}.scrollIntoView({{ block: 'center' }})"));
        self.frame();
        let at = self.eval(&format!(
            "(() => {{ const b = {element}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        ));
        (
            at[0].as_f64().expect("a number"),
            at[1].as_f64().expect("a number"),
        )
    }

    /// Middle of the first slot on a lane of a calendar.
    fn slot(&mut self, calendar: &str, lane: usize, slot: usize) -> (f64, f64) {
        let at = self.eval(&format!(
            "(() => {{ const g = zbmd.{calendar}, s = g.lanes[{lane}].slots[{slot}], b = g.plot.canvas.getBoundingClientRect(); \
             return [b.x + 1 + g.px(s.start_ns + s.duration_ns / 2), b.y + 1 + 24 + {lane} * 26 + 13]; }})()"
        ));
        (
            at[0].as_f64().expect("a number"),
            at[1].as_f64().expect("a number"),
        )
    }

    fn tip(&mut self) -> String {
        let text = self.eval("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent");
        text.as_str().expect("text").to_owned()
    }

    fn close(mut self) -> Vec<Value> {
        self.session.clear();
        self.call("Browser.close", json!({}));
        self.child.wait().expect("the browser ends");
        self.errors
    }
}

fn html(dir: &Path, name: &str, program: zbmd_ir::Program) -> PathBuf {
    let bundle = dir.join(format!("{name}.zbmd"));
    let program = verify(program).expect("hand-built programs are valid");
    bundle::write_with(&bundle, &program, &Meta::new()).expect("a bundle");
    page_of(dir, name, &bundle)
}

/// The page of a bundle.
fn page_of(dir: &Path, name: &str, bundle: &Path) -> PathBuf {
    let page = dir.join(format!("{name}.html"));
    let status = Command::new(env!("CARGO_BIN_EXE_zbmdc"))
        .args(["inspect", "--format", "html", "-o"])
        .args([page.as_path(), bundle])
        .status()
        .expect("zbmdc starts");
    assert!(status.success());
    page
}

#[test]
fn a_page_is_zoomed_hovered_searched_and_clicked() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: no Chromium or Chrome on the path, and none in ZBMD_BROWSER");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let file = html(dir.path(), "spare", programs::spare());
    for size in [(1280, 900), (390, 800)] {
        let profile = dir.path().join(format!("profile{}", size.0));
        let mut page = Page::open(&browser, &profile, &file, size);
        assert_eq!(page.eval("document.body.dataset.ready"), "1");
        assert_eq!(
            page.eval("document.getElementById('title').textContent"),
            "spare"
        );
        let wide = page.number("document.documentElement.scrollWidth");
        assert!(
            wide <= f64::from(size.0),
            "{wide} pixels in a window of {}",
            size.0
        );

        // Hover: what lies under the pointer is told.
        page.middle("document.getElementById('calendar')");
        let at = page.slot("calendar", 1, 1);
        page.mouse("mouseMoved", at, json!({}));
        let tip = page.tip();
        assert!(tip.starts_with("fir[0..2]\ncpu:1 at "), "{tip}");

        // Zoom: the wheel makes less of the period fill the same room, around the pointer.
        let before = page.number("zbmd.calendar.plot.scale");
        page.mouse("mouseWheel", at, json!({ "deltaX": 0, "deltaY": -600 }));
        let after = page.number("zbmd.calendar.plot.scale");
        assert!(after > 5.0 * before, "{before} to {after}");
        page.mouse("mouseMoved", at, json!({}));
        assert!(
            page.tip().starts_with("fir[0..2]"),
            "the same slot is under the pointer"
        );
        let left = page.number("zbmd.calendar.plot.x");
        page.mouse(
            "mousePressed",
            at,
            json!({ "button": "left", "clickCount": 1 }),
        );
        page.mouse(
            "mouseMoved",
            (at.0 - 30.0, at.1),
            json!({ "button": "left", "buttons": 1 }),
        );
        page.mouse(
            "mouseReleased",
            (at.0 - 30.0, at.1),
            json!({ "button": "left", "clickCount": 1 }),
        );
        assert!(page.number("zbmd.calendar.plot.x") > left, "dragging moves");
        assert_eq!(
            page.eval("zbmd.state.actor"),
            Value::Null,
            "and selects nothing"
        );
        let whole = page.middle("document.getElementById('whole')");
        page.click(whole);
        assert!((page.number("zbmd.calendar.plot.scale") / before - 1.0).abs() < 1e-6);

        // Click: an actor is selected everywhere and described.
        page.middle("document.getElementById('calendar')");
        let at = page.slot("calendar", 1, 1);
        page.click(at);
        assert_eq!(page.eval("zbmd.view.actors[zbmd.state.actor].name"), "fir");
        let details = page.eval("document.getElementById('details').textContent");
        assert!(
            details.as_str().is_some_and(|d| d.starts_with("fir: ")),
            "{details}"
        );
        page.key("Escape");
        assert_eq!(page.eval("zbmd.state.actor"), Value::Null);

        // Search: matches are counted, Enter brings the next to the middle.
        let field = page.middle("document.getElementById('search')");
        page.click(field);
        page.call("Input.insertText", json!({ "text": "FIR" }));
        assert_eq!(
            page.eval("document.getElementById('found').textContent"),
            "1 actor"
        );
        page.key("Enter");
        assert!(page.number("zbmd.calendar.plot.scale") > before);
        page.key("Escape");
        assert_eq!(
            page.eval("document.getElementById('found').textContent"),
            ""
        );

        // Losses: a click on a device shows its calendar, under the names of who is left.
        assert_eq!(page.eval("document.getElementById('other').hidden"), true);
        let device = page.middle("document.querySelector('#devices button')");
        page.click(device);
        assert_eq!(page.eval("document.getElementById('other').hidden"), false);
        assert_eq!(page.eval("zbmd.state.spare"), 1);
        assert_eq!(page.eval("zbmd.spare.name(zbmd.spare.lanes[0])"), "cpu:1");
        // What was shown may have moved it.
        let device = page.middle("document.querySelector('#devices button')");
        page.click(device);
        assert_eq!(page.eval("document.getElementById('other').hidden"), true);
        let row = page.middle("document.querySelector('#contingencies tbody tr')");
        page.click(row);
        assert_eq!(page.eval("zbmd.spare.name(zbmd.spare.lanes[0])"), "cpu:0");

        assert_eq!(page.close(), Vec::<Value>::new(), "errors of the page");
    }
}

#[test]
fn a_page_switches_modes() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: no Chromium or Chrome on the path, and none in ZBMD_BROWSER");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let quick = programs::spare();
    let mut slow = quick.clone();
    slow.graph.actors[ActorId(1)].name = "long".into();
    slow.plans
        .iter_mut()
        .for_each(|plan| plan.period_ns += 5_000);
    let list = [("quick", quick), ("slow", slow)].map(|(name, program)| Mode {
        name: name.to_owned(),
        program,
    });
    let modes = Modes {
        list: list.into(),
        changes: vec![(0, 1), (1, 0)],
        decision: None,
    };
    let modes = verify_modes(modes).expect("valid modes");
    let bundle = dir.path().join("modes.zbmd");
    bundle::write_modes(&bundle, &modes, &Meta::new()).expect("a bundle");
    let file = page_of(dir.path(), "modes", &bundle);

    for size in [(1280, 900), (390, 800)] {
        let profile = dir.path().join(format!("profile{}", size.0));
        let mut page = Page::open(&browser, &profile, &file, size);
        let wide = page.number("document.documentElement.scrollWidth");
        assert!(
            wide <= f64::from(size.0),
            "{wide} pixels in a window of {}",
            size.0
        );
        assert_eq!(page.eval("document.getElementById('modes').hidden"), false);
        assert_eq!(
            page.number("document.querySelectorAll('#automaton .mode').length"),
            2.0
        );
        assert_eq!(
            page.number("document.querySelectorAll('#automaton .change').length"),
            2.0
        );
        assert_eq!(page.eval("zbmd.view.actors[1].name"), "fir");

        // A device is lost, an actor selected, and the mode changed: the loss stays, the actor is not in this mode.
        let device = page.middle("document.querySelector('#devices button')");
        page.click(device);
        page.middle("document.getElementById('calendar')");
        let at = page.slot("calendar", 1, 1);
        page.click(at);
        assert_eq!(page.eval("zbmd.view.actors[zbmd.state.actor].name"), "fir");
        let before = page.number("zbmd.calendar.plan.period_ns");
        let state = page.middle("document.querySelectorAll('#automaton .mode')[1]");
        page.click(state);
        assert_eq!(page.eval("zbmd.view.actors[1].name"), "long");
        assert_eq!(
            page.number("zbmd.calendar.plan.period_ns"),
            before + 5_000.0
        );
        assert_eq!(page.eval("zbmd.state.actor"), Value::Null);
        assert_eq!(page.eval("document.getElementById('other').hidden"), false);
        assert_eq!(page.eval("zbmd.spare.plan === zbmd.view.plans[1]"), true);
        let pressed =
            "document.querySelector('#automaton [aria-pressed=true]').getAttribute('aria-label')";
        assert_eq!(page.eval(pressed), "slow");

        // A line of the table shows its plan; the keyboard changes modes, too.
        let row = page.middle("document.querySelectorAll('#modelist tbody tr')[1]");
        page.click(row);
        assert_eq!(page.eval(pressed), "quick");
        assert_eq!(page.eval("zbmd.spare.plan === zbmd.view.plans[1]"), true);
        page.eval("document.querySelectorAll('#automaton .mode')[1].focus()");
        page.key("Enter");
        assert_eq!(page.eval(pressed), "slow");
        assert_eq!(page.close(), Vec::<Value>::new(), "errors of the page");
    }
}

/// With a hundred thousand slots the page loads, and a drawing is made of what is seen.
#[test]
fn a_long_calendar_is_drawn() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: no Chromium or Chrome on the path, and none in ZBMD_BROWSER");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let file = html(dir.path(), "long", programs::long(33_400));
    let mut page = Page::open(&browser, &dir.path().join("profile"), &file, (1280, 900));
    assert!(page.number("zbmd.calendar.lanes.reduce((n, l) => n + l.slots.length, 0)") > 100_000.0);
    // As a person looks: the number is for the log, since computers differ.
    let draw = "(() => { const t = performance.now(); for (let i = 0; i < 20; i++) zbmd.calendar.plot.now(); return (performance.now() - t) / 20; })()";
    let whole = page.number(draw);
    page.eval("zbmd.calendar.plot.zoom(500, 600, 40)");
    let part = page.number(draw);
    eprintln!("{whole:.2} ms for a drawing of the whole period, {part:.2} ms for a part");
    // Far fewer boxes than slots are drawn: a pixel's worth is one.
    let count = "(() => { const g = zbmd.calendar, box = g.box; let boxes = 0; g.whole(); \
         g.box = function (...a) { boxes++; return box.apply(this, a); }; g.plot.now(); return boxes; })()";
    let boxes = page.number(count);
    assert!(boxes < 3000.0, "{boxes} boxes");
    assert_eq!(page.close(), Vec::<Value>::new(), "errors of the page");
}
