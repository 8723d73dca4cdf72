//! Models with mistakes, odd ones and malicious ones: the code and the words that each gets, and nothing else.

use super::check;

/// A source, a sink, and what lies between.
fn io(actors: &str, channels: &str) -> String {
    format!(
        "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, sinks: {{\"out\": Stream()}}, \
         channels: [{channels}])"
    )
}

/// The same with one channel from source to sink and these fields in it.
fn wire(fields: &str) -> String {
    io("", &format!("(from: \"in\", to: [\"out\"], {fields})"))
}

#[track_caller]
fn expect(text: &str, wanted: &[&str]) {
    let said = check(text);
    let shown: String = text.chars().take(300).collect();
    assert_eq!(said.len(), wanted.len(), "{shown}\n{said:#?}");
    for (said, wanted) in said.iter().zip(wanted) {
        let (code, fragment) = wanted.split_once(' ').unwrap_or((wanted, ""));
        assert!(
            said.starts_with(code) && said.contains(fragment),
            "{shown}\nsaid   {said}\nwanted {wanted}"
        );
    }
}

#[test]
fn syntax() {
    let whole = io(
        "\"half\": Gain(0.5)",
        "(from: \"in\", to: [\"half\"]), (from: \"half\", to: [\"out\"])",
    );
    expect(&whole, &[]);
    expect("", &["E0101 found the end of the file"]);
    expect("// only a comment", &["E0101 found the end of the file"]);
    expect("\u{feff}Model(name: \"x\")", &["E0218 no actors"]);
    expect(&whole[..whole.len() - 1], &["E0102 `(` is never closed"]);
    expect(
        &whole[..whole.len() - 8],
        &["E0102 the string is never closed"],
    );
    expect("Model(name: \"x", &["E0102 the string is never closed"]);
    expect(
        "Model(/* name: \"x\")",
        &["E0102 the comment is never closed"],
    );
    expect(&"[".repeat(100_000), &["E0104 nested deeper than 96"]);
    expect(
        &"Model(models: {\"a\": ".repeat(5_000),
        &["E0104 nested deeper than 96"],
    );
    expect("Model(name: 1.2.3)", &["E0103 `1.2.3` is no number"]);
    expect("Model(name = \"x\")", &["E0106 `=` means nothing here"]);
    expect("Model(name: \"\\u{110000}\")", &["E0106 unknown escape"]);
    expect("Model(,)", &["E0101 found `,`"]);
    expect("Model() Model()", &["E0101 expected the end of the file"]);
    expect(
        "\0\0\0",
        &[
            "E0106 means nothing here",
            "E0106 means nothing here",
            "E0106 means nothing here",
        ],
    );
}

#[test]
fn structure() {
    expect("[]", &["E0203 expected a model"]);
    expect("Modle()", &["E0203 expected a model"]);
    expect("Model(sinks: 5)", &["E0203 expected a map of sinks"]);
    expect(
        "Model(actors: {\"a\": Gain})",
        &["E0203 actor `a` is the word `Gain`"],
    );
    expect(
        "Model(actors: {5: Gain(1)})",
        &["E0203 expected a name in quotes"],
    );
    expect(
        "Model(chanels: [])",
        &["E0201 Model has no field `chanels`"],
    );
    expect(&wire("initail: [1.0]"), &["E0201 no field `initail`"]);
    expect("Model(\"x\")", &["E0203 a string in Model has no name"]);
    expect(
        &io("", "(to: [\"out\"])"),
        &["E0202 a channel has no `from`"],
    );
    expect(
        &io("", "(from: 5, to: [\"out\"])"),
        &["E0203 expected the writer's name"],
    );
    expect(
        "Model(actors: {\"a b\": Gain(1)})",
        &["E0204 `a b` cannot be the name of an actor"],
    );
    expect(
        "Model(actors: {\"\": Gain(1)})",
        &["E0204 `` cannot be the name"],
    );
    expect(
        &io("\"in\": Gain(1)", ""),
        &["E0205 the name `in` is used twice"],
    );
    expect(
        &io("\"a\": Gain(1), \"a\": Gain(2)", ""),
        &[
            "E0208 input `x` of `a`",
            "E0107 key `a` is given twice",
            "E0208 sink `out`",
        ],
    );
    expect(
        &wire("initial: [], initial: []"),
        &["E0107 field `initial` is given twice"],
    );
    expect(
        &io(
            "\"a\": Gain(1, gain: 2)",
            "(from: \"in\", to: [\"a\"]), (from: \"a\", to: [\"out\"])",
        ),
        &["E0107 parameter `gain` is given twice"],
    );
    expect(
        &io("", "(from: \"inn\", to: [\"out\"])"),
        &["E0206 nothing here is called `inn`"],
    );
    expect(
        &io("", "(from: \"in\", to: [\"uot\"])"),
        &["E0206 nothing here is called `uot`"],
    );
    expect(
        &io("", "(from: \"out\", to: [\"in\"])"),
        &["E0216 `out` is a sink", "E0216 `in` is a source"],
    );
    expect(
        &io("", "(from: \"in\", to: [\"out\", \"out\"])"),
        &["E0209 input `x` of `out` is connected twice"],
    );
    expect(
        &io("\"a\": Gian(1)", "(from: \"in\", to: [\"a\", \"out\"])"),
        &["E0210 there is no op `Gian`"],
    );
    expect(
        &io("\"a\": Gain(1, 2)", "(from: \"in\", to: [\"a\", \"out\"])"),
        &["E0302 takes 1 arguments without a name"],
    );
    expect(
        "Model(pins: {\"x\": \"cpu:0\"}, sources: {\"in\": Stream(dtype: f32)}, channels: [(from: \"in\", to: [])])",
        &["E0502 a pin names `x`"],
    );
}

#[test]
fn ports() {
    let through = |from: &str, to: &str| {
        io(
            "\"g\": Gain(2)",
            &format!("(from: \"in\", to: [\"{to}\"]), (from: \"{from}\", to: [\"out\"])"),
        )
    };
    expect(&through("g", "g"), &[]);
    expect(&through("g.y", "g.x"), &[]);
    expect(
        &through("g.z", "g"),
        &["E0207 `g` (Gain) has no output `z`"],
    );
    expect(
        &through("g", "g.z"),
        &["E0208 input `x` of `g` is not connected"],
    );
    expect(
        &through("in.z", "g"),
        &["E0207 `in` (Source) has no output `z`"],
    );
    expect(
        &io(
            "\"s\": Expr(\"a + b\")",
            "(from: \"in\", to: [\"s.a\"]), (from: \"s\", to: [\"out\"])",
        ),
        &["E0208 input `b` of `s` is not connected"],
    );
    expect(&io("", ""), &["E0208 sink `out` is not connected"]);
}

#[test]
fn sub_models() {
    let stage = |params: &str, body: &str, instance: &str| {
        format!(
            "Model(sources: {{\"in\": Stream(dtype: f32)}}, models: {{\"stage\": Model(params: {{{params}}}, \
             inputs: {{\"x\": Port()}}, outputs: {{\"y\": Port()}}, {body})}}, actors: {{\"s\": {instance}}}, \
             sinks: {{\"out\": Stream()}}, channels: [(from: \"in\", to: [\"s\"]), (from: \"s\", to: [\"out\"])])"
        )
    };
    let body = "actors: {\"g\": Gain($k)}, channels: [(from: \"x\", to: [\"g\"]), (from: \"g\", to: [\"y\"])]";
    expect(&stage("\"k\": 2.0", body, "Sub(\"stage\")"), &[]);
    expect(
        &stage("\"k\": 2.0", body, "Sub(\"stgae\")"),
        &["E0211 there is no sub-model `stgae`", "W0202"],
    );
    expect(
        &stage("\"k\": 2.0", body, "Sub(5)"),
        &["E0203 expected a sub-model's name", "W0202"],
    );
    expect(
        &stage("\"k\": 2.0", body, "Sub(\"stage\", q: 1)"),
        &["E0214 no parameter `q`"],
    );
    expect(
        &stage("\"k\": required", body, "Sub(\"stage\")"),
        &["E0214 gives no `k`"],
    );
    expect(
        &stage("", body, "Sub(\"stage\")"),
        &["E0213 there is no parameter `k`"],
    );
    expect(
        &stage("\"k\": \"loud\"", body, "Sub(\"stage\")"),
        &["E0302 parameter `gain`"],
    );
    expect(
        &stage("\"k\": 1", "sinks: {\"z\": Stream()}", "Sub(\"stage\")"),
        &["E0215 has a sink `z`"],
    );
    expect(
        &stage(
            "\"k\": 1",
            "channels: [(from: \"x\", to: [])]",
            "Sub(\"stage\")",
        ),
        &["E0208 port `s/y` is not connected"],
    );
    expect(
        &stage(
            "\"k\": 1",
            "actors: {\"again\": Sub(\"stage\")}",
            "Sub(\"stage\")",
        ),
        &["E0212 contains itself: stage -> stage"],
    );
    expect(
        "Model(models: {\"a\": Model(actors: {\"x\": Sub(\"b\")}), \"b\": Model(actors: {\"x\": Sub(\"c\")}), \
         \"c\": Model(actors: {\"x\": Sub(\"a\")})}, actors: {\"s\": Sub(\"a\")})",
        &["E0212 a -> b -> c -> a"],
    );
    expect(
        "Model(models: {\"a\": File(\"/no/such/file.ron\")}, actors: {\"s\": Sub(\"a\")})",
        &["E0701 cannot read"],
    );
    expect(
        "Model(models: {\"a\": File(5)})",
        &["E0203 expected a path"],
    );
    expect(
        &io("\"g\": Gain($k)", "(from: \"in\", to: [\"g\", \"out\"])"),
        &["E0213 there is no parameter `k`"],
    );
    // Each level doubles: 2^40 instances, unless stopped. The limit of names is reached first, and reported once.
    let mut bomb = "Model(models: {\"m0\": Model(actors: {})".to_owned();
    for i in 1..40 {
        let below = i - 1;
        bomb += &format!(
            ", \"m{i}\": Model(actors: {{\"a\": Sub(\"m{below}\"), \"b\": Sub(\"m{below}\")}})"
        );
    }
    bomb += "}, actors: {\"s\": Sub(\"m39\")})";
    expect(
        &bomb,
        &["E0505 the names of all actors together have more bytes than the limit"],
    );
    // 16^6 instances with short names.
    let mut wide_bomb = "Model(models: {\"m0\": Model(actors: {})".to_owned();
    for level in 1..7 {
        let below = level - 1;
        let instances: String = ('a'..='p')
            .map(|name| format!("\"{name}\": Sub(\"m{below}\"), "))
            .collect();
        wide_bomb += &format!(", \"m{level}\": Model(actors: {{{instances}}})");
    }
    wide_bomb += "}, actors: {\"s\": Sub(\"m6\")})";
    expect(
        &wide_bomb,
        &["E0505 more instances of sub-models than the limit"],
    );
}

#[test]
fn types_and_parameters() {
    let one = |actor: &str| {
        io(
            &format!("\"a\": {actor}"),
            "(from: \"in\", to: [\"a\"]), (from: \"a\", to: [\"out\"])",
        )
    };
    expect(&one("Gain(NaN)"), &["E0305 a parameter is NaN"]);
    expect(&one("Gain(inf)"), &["E0302 parameter `gain`"]);
    expect(&one("Gain()"), &["E0302 parameter `gain`: is missing"]);
    expect(&one("Gain(\"loud\")"), &["E0302 parameter `gain`: is"]);
    expect(&one("Gain([1, [2]])"), &["E0302 parameter `gain`: is"]);
    expect(
        &one("Gain(gain: 1, gian: 2)"),
        &["E0302 parameter `gian`: no such parameter"],
    );
    expect(&one("Fir([])"), &["E0302 parameter `taps`"]);
    expect(&one("Fir([1, \"x\"])"), &["E0302 parameter `taps`"]);
    expect(
        &one("Fir([1.0], decimate: 0)"),
        &["E0302 parameter `decimate`"],
    );
    expect(
        &one("Fir([1.0], decimate: -1)"),
        &["E0302 parameter `decimate`"],
    );
    expect(&one("Expr(\"x +\")"), &["E0302 parameter `expr`"]);
    expect(
        &one("Expr(\"x\", inputs: {\"x\": f31})"),
        &["E0302 parameter `inputs.x`"],
    );
    expect(&one("Custom(\"none\")"), &["E0309"]);
    expect(&one("Magnitude()"), &["E0303 input `x` is f32"]);
    expect(&one("Gain(Foo(1))"), &["E0203 expected a value"]);
    let stream = |fields: &str| {
        format!("Model(sources: {{\"in\": Stream({fields})}}, channels: [(from: \"in\", to: [])])")
    };
    expect(&stream("dtype: f31"), &["E0310 `f31` is no dtype"]);
    expect(
        &stream("dtype: f32, file: \"upd://h:1\""),
        &["E0311 `upd://h:1`: unknown scheme `upd`; allowed for sources: udp"],
    );
    expect(
        &stream("dtype: f32, file: \"rtl_tcp-listen://h:1\""),
        &["E0311 `rtl_tcp-listen://h:1`: unknown scheme `rtl_tcp-listen`; allowed for sources"],
    );
    expect(
        &stream("dtype: f32, file: \"udp://h:1?packet=64\""),
        &["E0311 `udp://h:1?packet=64`: `udp` has no key `packet` for sources"],
    );
    expect(
        &stream("dtype: f32, shape: [0]"),
        &["E0203 a dimension is 0, less than 1"],
    );
    expect(
        &stream("dtype: f32, shape: [-1]"),
        &["E0203 a dimension is -1"],
    );
    expect(
        &stream("dtype: f32, shape: [99999999999]"),
        &["E0505 a dimension is 99999999999"],
    );
    expect(
        &stream("dtype: f32, shape: [4294967295, 4294967295]"),
        &["E0505 a token of `y` in bytes"],
    );
    expect(
        &stream("dtype: f32, shape: [1,1,1,1,1,1,1,1,1]"),
        &["E0505 a shape has 9 dimensions"],
    );
    expect(
        &stream("dtype: f32, rate: 0"),
        &["E0203 a rate is 0, less than 1"],
    );
    expect(
        &stream("dtype: f32, rate: 9223372036854775807"),
        &["E0505 a rate is"],
    );
    expect(
        &stream("dtype: f32, sample_rate: NaN"),
        &["E0305 a sample rate is NaN"],
    );
    expect(
        &stream("dtype: f32, sample_rate: 0"),
        &["E0305 a sample rate is 0"],
    );
    expect(&stream("dtype: f32, file: 5"), &["E0203 expected a path"]);
    expect(
        &stream(""),
        &["E0304 the token type of source `in` is not known"],
    );
}

#[test]
fn channels() {
    expect(
        &wire("dtype: c32"),
        &["E0306 dtype c32 is stated, `in` writes f32"],
    );
    expect(
        &wire("dtype: f32, shape: [2]"),
        &["E0306 shape [2] is stated"],
    );
    expect(
        "Model(sources: {\"in\": Stream(dtype: c32)}, sinks: {\"out\": Stream(dtype: f32)}, channels: [(from: \"in\", to: [\"out\"])])",
        &["E0301 `in` writes c32, sink `out` takes f32"],
    );
    expect(
        &wire("window: 4"),
        &["E0306 the channel states a window of 4"],
    );
    expect(
        &io(
            "\"f\": Fir([1, 1, 1])",
            "(from: \"in\", to: [(\"f\", window: 1, rate: 2)]), (from: \"f\", to: [\"out\"])",
        ),
        &["E0306 a window of 1", "E0306 a rate of 2"],
    );
    expect(&wire("initial: 1.0"), &["E0203 expected a list of tokens"]);
    expect(&wire("initial: [true]"), &["E0307 `true` is no f32"]);
    expect(
        &wire("initial: [[1, 2]]"),
        &["E0307 a token of f32 has 1 elements, 2 are given"],
    );
    expect(&wire("initial: [1e300]"), &["E0307 is no f32"]);
    expect(
        &wire("initial: Zeros()"),
        &["E0202 the tokens has no `count`"],
    );
    expect(
        &wire("initial: Zeros(-1)"),
        &["E0203 a number of tokens is -1"],
    );
    expect(
        &wire("initial: Zeros(1000000000000000000)"),
        &["E0505 a number of tokens"],
    );
    expect(
        &wire("initial: Zeros(1000000000)"),
        &["E0505 1000000000 initial tokens"],
    );
    expect(
        &wire("initial: Fill(1000000000, 1)"),
        &["E0505 1000000000 initial tokens"],
    );
    expect(
        &wire("initial: Npy(\"/no/such.npy\")"),
        &["E0701 cannot read"],
    );
    expect(&wire("initial: Npy()"), &["E0203 `Npy` takes one path"]);
    expect(
        &wire("history: [1.0]"),
        &["E0308 the history has 1 tokens, `out` looks at 0 beyond its rate"],
    );
    expect(
        &io(
            "\"f\": Fir([1, 1, 1])",
            "(from: \"in\", to: [\"f\"], history: Zeros(1)), (from: \"f\", to: [\"out\"])",
        ),
        &["E0308 the history has 1 tokens, `f` looks at 2"],
    );
}

#[test]
fn loops() {
    let text = |initial: &str, declared: &str| {
        io(
            &format!("\"s\": Expr(\"x + y\"{declared}), \"g\": Gain(0.5)"),
            &format!(
                "(from: \"in\", to: [\"s.x\"]), (from: \"s\", to: [\"g\", \"out\"]), (from: \"g\", to: [\"s.y\"]{initial})"
            ),
        )
    };
    let declared = ", inputs: {\"x\": f32, \"y\": f32}";
    expect(&text(", initial: [0.0]", declared), &[]);
    expect(&text("", declared), &["E0402 deadlock: "]);
    expect(&text(", initial: []", declared), &["E0402 deadlock: "]);
    expect(&text(", initial: [0.0]", ""), &["E0304 hang on each other"]);
    expect(
        &io(
            "\"d\": Fir([1], decimate: 2), \"s\": Expr(\"a + b\")",
            "(from: \"in\", to: [\"d\", \"s.a\"]), (from: \"d\", to: [\"s.b\"]), (from: \"s\", to: [\"out\"])",
        ),
        &["E0401 rates are inconsistent"],
    );
}

#[test]
fn errors_of_all_stages_are_reported_together() {
    let text = r#"Model(
        sources: { "in": Stream(dtype: f32), "odd": Stream(dtype: f31) },
        actors: {
            "a": Gian(1),
            "b": Gain(NaN),
            "c": Gain(gian: 1),
            "d": Magnitude(),
            "e": Gain(1.0),
        },
        sinks: { "out": Stream(shap: []) },
        channels: [
            (from: "in", to: ["c", "d", "e"]),
            (from: "e", to: ["out"], initial: ["x"]),
            (from: "nobody", to: ["out"]),
        ],
    )"#;
    expect(
        text,
        &[
            "E0310 `f31`",
            "E0210 `Gian`",
            "E0305 NaN",
            "E0302 `gian`",
            "E0201 no field `shap`",
            "E0303 input `x` is f32",
            "E0307 a string is no f32",
            "E0206 `nobody`",
        ],
    );
}
