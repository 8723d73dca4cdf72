//! Models that use every device of a cluster of equal hosts, as `zbmdc compile --hosts H --devices D` has them. The text of each is
//! made for the size of the cluster, and what comes out of it is known for every input. Sources and sinks are on the first device.

use std::fmt::Write as _;

/// So many hosts with so many devices each.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Hosts, `h0` and so on.
    pub hosts: usize,
    /// Devices of each, `h0:0` and so on.
    pub devices: usize,
}

impl Cluster {
    /// Devices of all hosts.
    pub fn all_devices(self) -> usize {
        self.hosts * self.devices
    }

    /// A device by its number, host by host.
    fn device(self, number: usize) -> String {
        format!("h{}:{}", number / self.devices, number % self.devices)
    }

    /// A device by its number, where two in a row are on two hosts.
    fn spread_device(self, number: usize) -> String {
        format!("h{}:{}", number % self.hosts, number / self.hosts)
    }

    /// Each device says where it is: of source `tick`, sink `all` gets for each token t one of shape \[hosts, devices\], in which
    /// device d of host h has written t * N + h * D + d. N is the number of all devices, D that of a host's. The token goes to
    /// each host once, and back as what its devices have written.
    pub fn topology(self) -> String {
        let mut model = ModelText::new("topology");
        model.add_stream("tick");
        let mut said = Vec::new();
        for number in 0..self.all_devices() {
            let (host, device) = (number / self.devices, number % self.devices);
            let actor = format!("at{host}_{device}");
            let op = format!(
                r#"Expr("tick * {} + {number}", inputs: {{ "tick": i64 }})"#,
                self.all_devices()
            );
            model.add_actor(&actor, &op, &self.device(number));
            said.push(actor);
        }
        let told = (0..self.hosts).map(|host| format!("tell{host}"));
        let told: Vec<String> = told.collect();
        model.add_channel("tick", &told, "");

        let gathered = (0..self.hosts).map(|host| format!("host{host}"));
        let gathered: Vec<String> = gathered.collect();
        for (host, actors) in said.chunks(self.devices).enumerate() {
            let first = self.device(host * self.devices);
            model.add_actor(&told[host], "Gain(1)", &first);
            model.add_channel(&told[host], actors, "");
            model.add_gather(&gathered[host], actors, &first);
        }
        model.add_gather("whole", &gathered, &self.device(0));
        model.add_channel("whole", &["all".to_owned()], "");
        model.finish(&["all"])
    }

    /// How many times [`Self::dag`] computes its function: each takes five devices.
    pub fn dag_copies(self) -> usize {
        (self.all_devices() / 5).clamp(1, 256)
    }

    /// f = (s + 1)(s + 2) + s, each of its five operations on another device, as many times as there are devices for it: of
    /// sources `a` and `b`, sink `f` gets a list in which entry i has s = a + b + i.
    pub fn dag(self) -> String {
        let mut model = ModelText::new("dag");
        model.add_stream("a");
        model.add_stream("b");
        let names = |what: &str| -> Vec<String> {
            let copies = 0..self.dag_copies();
            copies.map(|copy| format!("{what}{copy}")).collect()
        };
        let (sums, ones, twos) = (names("sum"), names("one"), names("two"));
        let (products, results) = (names("product"), names("f"));

        for copy in 0..self.dag_copies() {
            let sum = format!("a + b + {copy}");
            let operations = [
                (&sums[copy], sum.as_str()),
                (&ones[copy], "s + 1"),
                (&twos[copy], "s + 2"),
                (&products[copy], "x * y"),
                (&results[copy], "p + s"),
            ];
            for (place, (actor, expression)) in operations.into_iter().enumerate() {
                let number = (5 * copy + place) % self.all_devices();
                let op = format!("Expr({expression:?})");
                model.add_actor(actor, &op, &self.spread_device(number));
            }
            let port = |actor: &str, port: &str| format!("{actor}.{port}");
            let readers = [&ones[copy], &twos[copy], &results[copy]].map(|actor| port(actor, "s"));
            model.add_channel(&sums[copy], &readers, "");
            model.add_channel(&ones[copy], &[port(&products[copy], "x")], "");
            model.add_channel(&twos[copy], &[port(&products[copy], "y")], "");
            model.add_channel(&products[copy], &[port(&results[copy], "p")], "");
        }
        for source in ["a", "b"] {
            let ports = sums.iter().map(|sum| format!("{sum}.{source}"));
            model.add_channel(source, &ports.collect::<Vec<_>>(), "");
        }
        model.add_gather("gathered", &results, &self.device(0));
        model.add_channel("gathered", &["f".to_owned()], "");
        model.finish(&["f"])
    }

    /// A token goes round all devices, each of which adds one, from host to host at each step: once for each token of source
    /// `tick`. Sink `laps` gets t * N at token t from 0; N is the number of all devices.
    pub fn ring(self) -> String {
        let mut model = ModelText::new("ring");
        model.add_stream("tick");
        let step = r#"Expr("x + 1", inputs: { "x": i64 })"#;
        let steps = (0..self.all_devices()).map(|number| format!("step{number}"));
        let steps: Vec<String> = steps.collect();
        for (number, actor) in steps.iter().enumerate() {
            model.add_actor(actor, step, &self.spread_device(number));
        }
        let start = r#"Expr("x + 0 * tick", inputs: { "x": i64, "tick": i64 })"#;
        model.add_actor("start", start, &self.device(0));

        model.add_channel("tick", &["start.tick".to_owned()], "");
        model.add_channel("start", &[steps[0].clone(), "laps".to_owned()], "");
        for pair in steps.windows(2) {
            model.add_channel(&pair[0], &pair[1..], "");
        }
        let last = &steps[steps.len() - 1];
        model.add_channel(last, &["start.x".to_owned()], ", initial: [0]");
        model.finish(&["laps"])
    }
}

/// A model as it is written.
struct ModelText {
    name: String,
    sources: String,
    actors: String,
    channels: String,
    pins: String,
}

impl ModelText {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sources: String::new(),
            actors: String::new(),
            channels: String::new(),
            pins: String::new(),
        }
    }

    /// A source of integers.
    fn add_stream(&mut self, name: &str) {
        push(
            &mut self.sources,
            format_args!(r#""{name}": Stream(dtype: i64),"#),
        );
        self.pin(name, "h0:0");
    }

    fn add_actor(&mut self, name: &str, op: &str, device: &str) {
        push(&mut self.actors, format_args!(r#""{name}": {op},"#));
        self.pin(name, device);
    }

    /// An actor that makes one token of those of others.
    fn add_gather(&mut self, name: &str, from: &[String], device: &str) {
        self.add_actor(name, "Gather()", device);
        for (index, actor) in from.iter().enumerate() {
            self.add_channel(actor, &[format!("{name}.x{index}")], "");
        }
    }

    fn add_channel(&mut self, from: &str, to: &[String], more: &str) {
        push(
            &mut self.channels,
            format_args!(r#"(from: "{from}", to: {to:?}{more}),"#),
        );
    }

    fn pin(&mut self, name: &str, device: &str) {
        push(&mut self.pins, format_args!(r#""{name}": "{device}","#));
    }

    /// The text, with these sinks.
    fn finish(mut self, sinks: &[&str]) -> String {
        let mut sink_text = String::new();
        for sink in sinks {
            push(&mut sink_text, format_args!(r#""{sink}": Stream(),"#));
            self.pin(sink, "h0:0");
        }
        format!(
            "Model(\n    name: {:?},\n    sources: {{\n{}    }},\n    actors: {{\n{}    }},\n    channels: [\n{}    ],\n    \
             sinks: {{\n{sink_text}    }},\n    pins: {{\n{}    }},\n)\n",
            self.name, self.sources, self.actors, self.channels, self.pins
        )
    }
}

/// Adds a line.
fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "        {line}");
}
