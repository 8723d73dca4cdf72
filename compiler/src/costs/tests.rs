use zbmd_ir::{DType, DeviceId, InPort, OutPort, Params, Role, StatePort, TiVec, TokenType};

use super::*;
use crate::machine;
use crate::source::SourceMap;

/// An actor with something of everything that a key holds.
fn actor() -> Actor {
    let port = |name: &str, token: TokenType, rate, window| InPort {
        name: name.into(),
        token,
        rate,
        window,
    };
    let c32 = TokenType::scalar(DType::C32);
    let list = Value::List(vec![Value::Float(0.5), Value::Float(1.0), Value::Int(1)]);
    let map = BTreeMap::from([("g".to_owned(), Value::Str("f\"32".to_owned()))]);
    let tensor = Value::Tensor(BlobId(1), TokenType::new(DType::F32, vec![2, 1]));
    Actor {
        name: "radio/channel".into(),
        role: Role::Compute,
        op: "Fir".into(),
        params: Params::from([
            ("fast".to_owned(), Value::Bool(true)),
            ("inputs".to_owned(), Value::Map(map)),
            ("taps".to_owned(), list),
            ("weights".to_owned(), tensor),
        ]),
        inputs: vec![port("x", c32.clone(), 2, 33), port("s", c32.clone(), 1, 1)],
        outputs: vec![
            OutPort {
                name: "y".into(),
                token: TokenType::new(DType::F32, vec![4]),
                rate: 3,
            },
            OutPort {
                name: "s".into(),
                token: c32,
                rate: 1,
            },
        ],
        state: vec![StatePort {
            input: 1,
            output: 1,
        }],
        in_place: vec![],
    }
}

fn blobs() -> TiVec<BlobId, Bytes> {
    TiVec::from(vec![
        Bytes::new(),
        Bytes::from_static(b"12345678"),
        Bytes::from_static(b"1234567x"),
    ])
}

#[test]
fn keys_are_stable() {
    // If this changes, every machine file and cache forgets what was measured.
    insta::assert_snapshot!(key_text(&actor(), &blobs()));
    insta::assert_snapshot!(CostKey::of(&actor(), &blobs()).to_string(), @"f47a9c43d8d9ed800ff21f8ac0b81ee3");
    insta::assert_snapshot!(ports_text(&actor()), @"c32 2/33 -> f32[4] 3");
}

#[test]
fn the_hash_is_that_of_the_text() {
    let text = key_text(&actor(), &blobs());
    assert_eq!(CostKey::of(&actor(), &blobs()).0, xxh3_128(text.as_bytes()));
}

#[test]
fn keys_tell_kernels_apart_and_nothing_else() {
    let key = CostKey::of(&actor(), &blobs());
    type Change = fn(&mut Actor);
    let same: &[(&str, Change)] = &[("another name", |a| a.name = "other".into())];
    let other: &[(&str, Change)] = &[
        ("op", |a| a.op = "Iir".into()),
        ("no parameter", |a| {
            a.params.remove("fast");
        }),
        ("an integer for a float", |a| {
            a.params
                .insert("taps".into(), Value::List(vec![Value::Int(1)]));
        }),
        ("contents of a tensor", |a| {
            let token = TokenType::new(DType::F32, vec![2, 1]);
            a.params
                .insert("weights".into(), Value::Tensor(BlobId(2), token));
        }),
        ("type", |a| a.inputs[0].token.dtype = DType::F32),
        ("shape", |a| a.outputs[0].token.shape = vec![5]),
        ("rate", |a| a.outputs[0].rate = 4),
        ("window", |a| a.inputs[0].window = 34),
        ("states", |a| a.state.clear()),
    ];
    for (what, change) in same {
        let mut changed = actor();
        change(&mut changed);
        assert_eq!(CostKey::of(&changed, &blobs()), key, "{what}");
    }
    for (what, change) in other {
        let mut changed = actor();
        change(&mut changed);
        assert_ne!(CostKey::of(&changed, &blobs()), key, "{what}");
    }
    // Where a blob stands is the model's affair.
    let mut moved = blobs();
    moved.swap(BlobId(0), BlobId(1));
    let mut changed = actor();
    let token = TokenType::new(DType::F32, vec![2, 1]);
    changed
        .params
        .insert("weights".into(), Value::Tensor(BlobId(0), token));
    assert_eq!(CostKey::of(&changed, &moved), key);
}

#[test]
fn keys_read_back() {
    for (text, expect) in [
        ("0000000000000000000000000000000a", Some(CostKey(10))),
        ("ffffffffffffffffffffffffffffffff", Some(CostKey(u128::MAX))),
        ("0000000000000000000000000000000A", None),
        ("+000000000000000000000000000000a", None),
        ("a", None),
        ("", None),
    ] {
        assert_eq!(CostKey::parse(text), expect, "{text}");
        assert!(expect.is_none_or(|key| key.to_string() == text));
    }
}

fn cost(op: &str, call_ps: u64) -> MeasuredCost {
    MeasuredCost {
        op: op.into(),
        ports: "f32 1 -> f32 1".into(),
        call_ps,
        firing_ps: 350,
        spread_percent: 1.5,
        samples: 9,
        variant: None,
    }
}

fn parse(text: &str) -> Result<(Machine, MeasuredCosts), Vec<String>> {
    let mut sources = SourceMap::default();
    let file = sources.add("machine.ron", text);
    let mut sink = Sink::default();
    let read = machine::read(file, text, &mut sink);
    let place = |d: &Diagnostic| {
        let at = sources.position(file, d.span().start);
        format!("{}:{} {} {}", at.line, at.column, d.code, d.message)
    };
    let errors: Vec<String> = sink.iter().map(place).collect();
    if errors.is_empty() {
        Ok(read.unwrap_or_default())
    } else {
        Err(errors)
    }
}

#[test]
fn the_section_reads_back() {
    let mut machine = machine::uniform(3);
    machine.devices[DeviceId(2)].name = "odd \"name\"".into();
    let mut costs = MeasuredCosts::default();
    for device in ["cpu:0", "odd \"name\""] {
        costs.insert(device, CostKey(7), cost("Gain", 5_000));
        costs.insert(device, CostKey(3), cost("Iir", 0));
    }
    let wide = MeasuredCost {
        variant: Some("6x64".into()),
        ..cost("NnMatMul", 8_000)
    };
    costs.insert("cpu:1", CostKey(7), wide);
    let text = machine::to_ron_with_costs(&machine, &costs).expect("it can be written");
    assert_eq!(parse(&text), Ok((machine.clone(), costs.clone())), "{text}");
    let section = text.split("costs: ").nth(1).expect("a section");
    insta::assert_snapshot!(section);
    // Costs of nobody are left out, and a machine without costs is what it was.
    costs = MeasuredCosts::default();
    costs.insert("gpu:0", CostKey(1), cost("Gain", 1));
    let bare = machine::to_ron_with_costs(&machine, &costs).expect("it can be written");
    assert_eq!(bare, machine::to_ron(&machine).expect("it can be written"));
}

#[test]
fn bad_sections() {
    const KEY: &str = "0000000000000000000000000000000a";
    let cases: &[(&str, &str)] = &[
        (
            "5",
            "2:12 E0203 expected a list of costs, found the integer 5",
        ),
        (
            "[5]",
            "E0203 expected costs: `Costs(devices: […], entries: […])`, found the integer 5",
        ),
        ("[Cost(devices: [], entries: [])]", "E0203 expected costs"),
        ("[(entries: [])]", "E0202 costs has no `devices`"),
        ("[(devices: [\"cpu:0\"])]", "E0202 costs has no `entries`"),
        (
            "[(devices: [\"cpu:9\"], entries: [])]",
            "2:24 E0501 there is no device `cpu:9`",
        ),
        (
            "[(devices: [\"cpu:0\", \"cpu:0\"], entries: [])]",
            "E0107 costs of device `cpu:0` is given twice",
        ),
        (
            "[(devices: [\"cpu:0\"], entries: [], unit: 1)]",
            "E0201 costs has no field `unit`",
        ),
        ("E 5", "E0203 expected a cost: "),
        (
            "E (op: \"Fir\", call_ps: 1, firing_ps: 1)",
            "E0202 a cost has no `key`",
        ),
        (
            "E (op: \"Fir\", key: KEY, firing_ps: 1)",
            "E0202 a cost has no `call_ps`",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1)",
            "E0202 a cost has no `firing_ps`",
        ),
        (
            "E (key: KEY, call_ps: 1, firing_ps: 1)",
            "E0202 a cost has no `op`",
        ),
        (
            "E (op: \"Fir\", key: \"12\", call_ps: 1, firing_ps: 1)",
            "E0203 `12` is not a key of a cost",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: -1, firing_ps: 1)",
            "E0203 the cost of a call in picoseconds is -1, less than 0",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1e18, firing_ps: 1)",
            "E0203 expected the cost of a call in picoseconds, an integer",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1000000000000001)",
            "E0505 the cost of a firing in picoseconds is 1000000000000001, more than the limit of 1000000000000000",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 0, firing_ps: 0)",
            "E0507 `Fir` cannot cost nothing",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 0, variant: \"6 x 64\")",
            "E0203 `6 x 64` is not a variant of a kernel",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1, spread: NaN)",
            "E0203 a spread of NaN percent is not possible",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1, spread: -0.5)",
            "E0203 a spread of -0.5 percent is not possible",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1, samples: 0)",
            "E0203 the number of samples is 0, less than 1",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1, cost: 0)",
            "E0201 a cost has no field `cost`",
        ),
        (
            "E (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1), (op: \"Fir\", key: KEY, call_ps: 1, firing_ps: 1)",
            "E0107 key `0000000000000000000000000000000a` is given twice",
        ),
    ];
    for (section, expect) in cases {
        let section = match section.strip_prefix("E ") {
            Some(entries) => format!("[(devices: [\"cpu:0\"], entries: [{entries}])]"),
            None => (*section).to_owned(),
        };
        let section = section.replace("KEY", &format!("{KEY:?}"));
        let text =
            format!("Machine(devices: [(name: \"cpu:0\", backend: cpu)],\n    costs: {section})");
        let errors = parse(&text).expect_err(&text);
        assert!(
            errors.len() == 1 && errors[0].contains(expect),
            "{section}: {errors:?}"
        );
    }
}
