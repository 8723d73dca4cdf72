//! The page of `zbmd-run --http`: what it asks for over HTTP, and the page itself in a browser without a window.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run;
use zbmd_tests::chromium::Browser;
use zbmd_tests::harness::Test;

pub(super) const TESTS: &[Test] = &[(
    "the_page_shows_and_sets_what_the_run_has",
    the_page_shows_and_sets_what_the_run_has,
)];

const MODEL: &str = r#"Model(
    name: "<b>level</b>",
    params: { "gain": Live(1.0, min: 0.0, max: 10.0) },
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: { "level": Gain($gain) },
    channels: [(from: "in", to: ["level"]), (from: "level", to: ["out"])],
    sinks: { "out": Stream() },
)"#;
const TOKENS: usize = 48_000 * 120;
/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(60);

fn the_page_shows_and_sets_what_the_run_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let ones = 1.0f32.to_le_bytes().repeat(TOKENS);
    std::fs::write(folder.join("ones.f32"), ones).expect("written");
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        block: Some(480),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", MODEL, "", &options);
    let program = compiled
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .program;
    zbmd_ir::bundle::write(folder.join("level.zbmd").as_path(), &program).expect("written");

    let run = PageRun::start(folder);
    check_keys(&run);
    check_answers(&run);
    check_hostile_requests(&run);
    match Browser::start(&folder.join("browser")) {
        Some(browser) => check_in_browser(&run, browser),
        None => eprintln!("SKIPPED: chromium is not here to show the page: install it"),
    }
}

/// A run that is killed in the end.
struct PageRun {
    child: Child,
    address: SocketAddr,
    key: String,
}

impl PageRun {
    /// Starts one, and reads where its page is.
    fn start(folder: &Path) -> Self {
        let mut child = child_run::command()
            .args(["level.zbmd", "-i", "in=paced:ones.f32?rate=48000"])
            .args(["-o", "out=/dev/null", "--http", "127.0.0.1:0"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let said = child.stderr.take().expect("piped");
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let found = lines.find_map(|line| {
            let url = line.strip_prefix("zbmd-run: the run is at http://")?;
            let (address, key) = url.split_once("/?key=")?;
            Some((address.parse().ok()?, key.to_owned()))
        });
        let (address, key) = found.expect("it says where");
        Self {
            child,
            address,
            key,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/?key={}", self.address, self.key)
    }

    /// The answer to these bytes, to its end.
    fn send(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The status and the body.
    fn ask(&self, line: &str, key: &str, body: &str) -> (String, String) {
        let length = body.len();
        let answer = self.send(
                format!(
                    "{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n{body}"
                )
                .as_bytes(),
            );
        let (head, body) = answer.split_once("\r\n\r\n").expect("a header");
        let status = head.lines().next().unwrap_or_default();
        (status.replace("HTTP/1.1 ", ""), body.to_owned())
    }

    fn json(&self, line: &str, body: &str) -> Value {
        let (status, text) = self.ask(line, &self.key, body);
        assert_eq!(status, "200 OK", "{line}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Drop for PageRun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check_keys(run: &PageRun) {
    assert_eq!(run.key.len(), 32);
    let other = "0".repeat(32);
    for (line, key) in [
        ("GET /", ""),
        (&format!("GET /?key={other}"), &other),
        ("GET /live.json", ""),
        ("GET /block.json?channel=level", &other),
        ("POST /set", &run.key[..31]),
    ] {
        let (status, body) = run.ask(line, key, "{\"gain\":[2.0]}");
        assert_eq!(status, "403 Forbidden", "{line}: {body}");
    }
    // Prometheus has none.
    assert_eq!(run.ask("GET /metrics", "", "").0, "200 OK");
    let (status, page) = run.ask(&format!("GET /?key={}", run.key), "", "");
    assert!(status == "200 OK" && page.contains("<canvas"), "{status}");
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "it needs no network"
    );
}

fn check_answers(run: &PageRun) {
    let live = run.json("GET /live.json", "");
    assert_eq!(live["model"], "<b>level</b>");
    let plan = run.json("GET /plan.json", "");
    assert_eq!(plan["lanes"][0]["device"], "cpu:0");
    let slots = plan["lanes"][0]["slots"].as_array().expect("slots");
    assert!(
        slots.iter().any(|slot| slot["name"] == "level"),
        "{slots:?}"
    );
    let times = run.json("GET /lanes.json?device=cpu%3A0", "");
    assert_eq!(times.as_array().map(Vec::len), Some(slots.len()), "{times}");
    let channels = run.json("GET /channels.json", "");
    let names: Vec<&Value> = channels
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(names, ["in", "level"]);

    run.json("POST /set", "{\"gain\":[3.5]}");
    let begun = Instant::now();
    let block = loop {
        let block = run.json("GET /block.json?channel=level", "");
        if block["figures"]["max"] != 1.0 || begun.elapsed() > LIMIT {
            break block;
        }
    };
    assert_eq!(block["figures"]["min"], 3.5, "{block}");
    assert_eq!(block["re"].as_array().map(Vec::len), Some(480));
    assert_eq!(block["spectrum"].as_array().map(Vec::len), Some(241));
    let values = run.json("GET /values.json", "");
    let expected = json!([{ "name": "gain", "numbers": [3.5], "min": 0.0, "max": 10.0 }]);
    assert_eq!(values["parameters"], expected);

    for (line, body, status, part) in [
        (
            "POST /set",
            "{\"gain\":[11]}",
            "409 Conflict",
            "the model allows 0 to 10",
        ),
        (
            "POST /set",
            "{\"gian\":[1]}",
            "409 Conflict",
            "no live parameter `gian`",
        ),
        ("POST /set", "[", "400 Bad Request", "expected a map"),
        (
            "POST /mode",
            "{\"mode\":\"scan\"}",
            "409 Conflict",
            "no mode `scan`",
        ),
        (
            "GET /block.json?channel=x",
            "",
            "409 Conflict",
            "no channel `x`",
        ),
        ("GET /lanes.json?device=x", "", "409 Conflict", "device `x`"),
        ("GET /other", "", "404 Not Found", "nothing of this name"),
        ("GET /set", "", "404 Not Found", "nothing of this name"),
    ] {
        let (found, text) = run.ask(line, &run.key, body);
        assert!(
            found == status && text.contains(part),
            "{line}: {found}: {text}"
        );
    }
}

/// Whoever sends nonsense, or nothing, is answered or let go, and others are served meanwhile.
fn check_hostile_requests(run: &PageRun) {
    let silent: Vec<TcpStream> = (0..8)
        .map(|_| TcpStream::connect(run.address).expect("it listens"))
        .collect();
    for request in [
        &b"\x16\x03\x01\r\n\r\n"[..],
        b"GET / HTTP/2.0\r\n\r\n",
        b"POST /set HTTP/1.1\r\nContent-Length: 4000000000\r\n\r\n",
        b"POST /set HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /set HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        &b"GET /a".repeat(10_000),
    ] {
        let answer = run.send(request);
        let is_refused = answer.starts_with("HTTP/1.1 400 ") || answer.is_empty();
        assert!(is_refused, "{answer}");
    }
    assert_eq!(run.json("GET /live.json", "")["model"], "<b>level</b>");
    drop(silent);
}

/// The page shows the run, sets what is set on it, and draws what is looked at.
fn check_in_browser(run: &PageRun, mut browser: Browser) {
    browser.open(&run.url());
    browser.wait_for("document.body?.dataset.state === 'live'");
    assert_eq!(
        browser.evaluate("document.getElementById('model').textContent"),
        "<b>level</b>"
    );
    assert_eq!(browser.evaluate("document.querySelectorAll('b').length"), 0);
    assert_eq!(
        browser.evaluate("document.querySelectorAll('#lanes canvas').length"),
        1
    );

    // Colours of planned and measured slots, and of nothing.
    let colours = |id: &str| {
        format!(
            "(() => {{ const c = {id}; const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; \
                 const all = new Set(); for (let i = 0; i < d.length; i += 4) all.add(d.slice(i, i + 4).join()); \
                 return all.size; }})()"
        )
    };
    browser.wait_for(&format!(
        "{} >= 3",
        colours("document.querySelector('#lanes canvas')")
    ));

    browser.evaluate(
            "(() => { const i = document.getElementById('set-gain'); i.value = '7'; i.dispatchEvent(new Event('change')); })()",
        );
    browser
        .evaluate("(() => { const c = document.getElementById('channel'); c.value = 'level'; })()");
    browser.wait_for("document.getElementById('figures').textContent.includes('max 7.000')");
    browser.wait_for(&format!(
        "{} >= 2",
        colours("document.getElementById('scope')")
    ));
    browser.wait_for(&format!(
        "{} >= 3",
        colours("document.getElementById('waterfall')")
    ));
    assert_eq!(
        browser.evaluate("document.getElementById('trouble').textContent"),
        ""
    );

    let settings = run.json("GET /values.json", "");
    assert_eq!(settings["parameters"][0]["numbers"], json!([7.0]));
}
