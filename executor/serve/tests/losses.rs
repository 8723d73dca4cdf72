//! Workers die under load: no request fails, every answer has the right bits, and readiness is what the supervisor says.

#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::exchange::{Exchange, wide_exchanges};
use common::{
    Connection, Models, WIDE, binary_part, compiled, signal, wait_until, wide_inputs, wide_request,
};
use rustix::process::Signal;

const INFER: &str = "/v2/models/wide/infer";
const CLIENTS: usize = 4;
const LOSSES: u32 = 6;
/// Answers that every client must have between two losses.
const ANSWERS_BETWEEN: u64 = 40;

/// What a client saw.
#[derive(Default)]
struct Seen {
    answers: AtomicU64,
    is_over: AtomicBool,
}

impl Seen {
    /// Asks until it is over. Any answer that is not a success with the right bits ends the test.
    fn ask(&self, mut connection: Connection, exchanges: &[Exchange], first: usize) {
        for exchange in exchanges.iter().cycle().skip(first) {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            exchange.ask(&mut connection).expect("the right answer");
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Kills workers of a server while clients ask it.
fn check_losses(devices: usize, options: &[&str]) {
    let model = compiled(WIDE, devices, 1);
    let server = Models::new().with("wide", &model).serve(options);
    let exchanges = wide_exchanges(&model);

    let clients: [Seen; CLIENTS] = std::array::from_fn(|_| Seen::default());
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            let connection = server.connect();
            let exchanges = &exchanges;
            scope.spawn(move || client.ask(connection, exchanges, number));
        }
        for loss in 0..LOSSES {
            let before = clients
                .each_ref()
                .map(|seen| seen.answers.load(Ordering::Relaxed));
            wait_until("answers after a loss", || {
                let now = clients
                    .each_ref()
                    .map(|seen| seen.answers.load(Ordering::Relaxed));
                let since = now.iter().zip(before).map(|(now, before)| now - before);
                since.min() >= Some(ANSWERS_BETWEEN)
            });
            // In turn each device's worker, and those that stand by.
            let workers = server.children();
            signal(workers[loss as usize % workers.len()], Signal::KILL);
        }
        let losses = "zbmd_worker_losses_total{model=\"wide\",cause=\"killed\"}";
        wait_until("the losses", || {
            server.get("/metrics").text().contains(losses) && server.metric(losses) >= 2.0
        });
        clients
            .iter()
            .for_each(|seen| seen.is_over.store(true, Ordering::Relaxed));
    });

    server.wait_until_ready(true);
    assert!(server.metric("zbmd_epochs_total{model=\"wide\"}") >= 3.0);
    assert_eq!(
        server.metric("nv_inference_request_failure{model=\"wide\",version=\"1\"}"),
        0.0
    );
    assert_eq!(
        server.metric("zbmd_run_restarts_total{model=\"wide\"}"),
        0.0
    );
}

#[test]
fn a_pipeline_goes_on_with_the_workers_that_are_left() {
    check_losses(2, &[]);
}

#[test]
fn a_single_worker_is_replaced() {
    check_losses(1, &[]);
}

#[test]
fn without_a_plan_the_model_is_not_ready_and_requests_wait() {
    let models = Models::new().with("wide", &compiled(WIDE, 1, 1));
    let server = models.serve(&["--no-standby"]);
    let (body, headers) = wide_request(&wide_inputs(1)[0]);
    let expected = server.connect().request("POST", INFER, &headers, &body);
    assert_eq!(server.children().len(), 1);

    let mut waits = server.connect();
    let mut asks = server.connect();
    let mut is_ready = || {
        let reply = asks.request("GET", "/v2/models/wide/ready", &[], &[]);
        reply.status == 200
    };
    // A new worker may be there before the question is answered: as many losses as it takes to see one.
    let mut killed = None;
    wait_until("a model that is not ready", || {
        if let [worker] = server.children()[..]
            && killed != Some(worker)
        {
            signal(worker, Signal::KILL);
            killed = Some(worker);
        }
        !is_ready()
    });
    waits.begin("POST", INFER, &headers, &body);
    wait_until("a new worker", is_ready);
    let reply = waits.reply().expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(binary_part(&reply) == binary_part(&expected));
}

#[test]
fn a_run_that_gives_up_is_begun_anew_with_what_was_admitted() {
    let models = Models::new().with("wide", &compiled(WIDE, 1, 1));
    let server = models.serve(&["--no-standby"]);
    let (body, headers) = wide_request(&wide_inputs(1)[0]);
    let expected = server.connect().request("POST", INFER, &headers, &body);

    // More losses than the supervisor tolerates.
    let restarts = "zbmd_run_restarts_total{model=\"wide\"}";
    wait_until("a run that gives up", || {
        server
            .children()
            .into_iter()
            .for_each(|worker| signal(worker, Signal::KILL));
        server.metric(restarts) > 0.0
    });
    let reply = server.connect().request("POST", INFER, &headers, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(binary_part(&reply) == binary_part(&expected));
    assert!(server.said().contains("its run ended and is begun anew"));
}
