//! What serving costs beside a server that computes nothing: the same bytes of a request and of an answer, over the same kind of
//! connections, in turn.
//!
//! `cargo bench -p zbmd-serve --bench serving -- canned [MODEL.onnx]`; without a model `mnist` of the shared data (`ZBMD_DATA`), or where that is
//! not there, four functions of 4,096 floats. Workers are processes, as they are by default. The rows are the medians of
//! five turns of a second; the load of the system is printed, as both servers and all clients share its cores.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use zbmd_compiler::Compiled;
use zbmd_executor::embed::streams;
use zbmd_executor::{Engine, RunOptions};

use super::common::{Connection, Models};
use super::figures::load;
use super::shared::{Model, connect, options, request};
use super::turn::{TURNS, Turn};

const CLIENTS: [usize; 3] = [1, 8, 16];
/// Iterations of a run without a server.
const ITERATIONS: u32 = 2000;

/// A request, and an answer that a server gave to it, as they are on the wire.
struct Exchange {
    request: Vec<u8>,
    answer: Vec<u8>,
}

pub(crate) fn run() {
    let chosen = Model::chosen();
    let (name, model) = (&chosen.name, chosen.compile(&options()));
    let model_us = in_process_us(&model);
    let request = request(&model, None);
    let server = Models::new().with("model", &model).serve(&[]);
    let answer = ask(&mut connect(server.address), &request);
    let exchange = Exchange { request, answer };
    let canned = serve_canned(&exchange);

    println!(
        "{name}: {model_us:.1} us in process, pushed and pulled one by one; load {}",
        load()
    );
    println!("clients   canned p50 us     /s   zbmd p50 us  p99 us     /s   p50 more us   rate");
    for clients in CLIENTS {
        let turns = (0..TURNS).map(|_| {
            let turn = |address| Turn::run(clients, |end| ask_until(end, address, &exchange));
            (turn(canned), turn(server.address))
        });
        let (canned_turns, zbmd_turns): (Vec<Turn>, Vec<Turn>) = turns.unzip();
        let (canned, zbmd) = (Turn::median(canned_turns), Turn::median(zbmd_turns));
        println!(
            "{clients:7} {:15.0} {:7.0} {:13.0} {:7.0} {:6.0} {:13.0} {:6.2}",
            canned.p50_us,
            canned.rate,
            zbmd.p50_us,
            zbmd.p99_us,
            zbmd.rate,
            zbmd.p50_us - canned.p50_us,
            zbmd.rate / canned.rate,
        );
    }
    println!("load {}", load());
}

/// An iteration without a server, from push to pull, in microseconds.
fn in_process_us(model: &Compiled) -> f64 {
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::new(model.program.clone(), &registry).expect("made");
    let mut session = engine.start(RunOptions::default()).expect("started");
    let tensor = |stream: &zbmd_executor::embed::StreamInfo| {
        vec![0_u8; (stream.token.bytes() * stream.tokens_per_iteration) as usize]
    };
    let (mut sources, mut sinks) = (Vec::new(), Vec::new());
    for stream in &streams(&engine.program().graph) {
        match stream.is_source {
            true => sources.push((session.source(&stream.name).expect("there"), tensor(stream))),
            false => sinks.push((session.sink(&stream.name).expect("there"), tensor(stream))),
        }
    }

    let begun = Instant::now();
    for _ in 0..ITERATIONS {
        for (source, tensor) in &mut sources {
            source.push_bytes(tensor).expect("taken");
        }
        for (sink, tensor) in &mut sinks {
            sink.pull_bytes(tensor).expect("given");
        }
    }
    let total = begun.elapsed();
    drop(sources);
    drop(sinks);
    session.join().expect("finished");
    total.as_secs_f64() * 1e6 / f64::from(ITERATIONS)
}

/// Asks once; the bytes of the answer.
fn ask(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    let mut connection = Connection::to(stream.peer_addr().expect("connected"));
    connection.write(request);
    let reply = connection.reply().expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json_bytes = reply
        .header("inference-header-content-length")
        .expect("bytes");
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n\
         inference-header-content-length: {json_bytes}\r\ncontent-length: {}\r\n\
         date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
        reply.body.len()
    );
    [head.as_bytes(), &reply.body].concat()
}

/// A server that reads as many bytes as the request has, and writes the answer. It knows no HTTP: nothing is quicker.
fn serve_canned(exchange: &Exchange) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (request_bytes, answer) = (exchange.request.len(), exchange.answer.clone());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut request = vec![0; request_bytes];
                while stream.read_exact(&mut request).is_ok() && stream.write_all(&answer).is_ok() {
                }
            });
        }
    });
    address
}

/// Responses in microseconds.
fn ask_until(end: Instant, address: SocketAddr, exchange: &Exchange) -> Vec<f64> {
    let mut stream = connect(address);
    let mut times = Vec::new();
    // The dates of two answers are as long.
    let mut answer = vec![0; exchange.answer.len()];
    while Instant::now() < end {
        let begun = Instant::now();
        stream.write_all(&exchange.request).expect("taken");
        stream.read_exact(&mut answer).expect("answered");
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    assert!(answer.ends_with(&exchange.answer[exchange.answer.len() - 16..]));
    times
}
