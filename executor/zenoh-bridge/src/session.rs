//! The session with Zenoh, as the command line or a configuration file has it.

use zenoh::key_expr::KeyExpr;
use zenoh::{Config, Session, Wait};

use crate::BridgeError;
use crate::args::NetworkArgs;

/// An endpoint that has not answered by then ends the process.
const CONNECT_MS: u32 = 10_000;

/// A key expression.
///
/// # Errors
/// One that Zenoh does not take, with its reason.
pub(crate) fn key_expression(text: &str) -> Result<KeyExpr<'static>, BridgeError> {
    KeyExpr::new(text.to_owned())
        .map_err(|error| BridgeError::Usage(format!("`{text}` is no key expression: {error}")))
}

/// Opens a session.
///
/// # Errors
/// A configuration that is none, or an endpoint that cannot be reached or listened at.
pub(crate) fn open(network: &NetworkArgs) -> Result<Session, BridgeError> {
    let config = configuration(network)?;
    zenoh::open(config)
        .wait()
        .map_err(|error| BridgeError::Session(format!("{error}{}", endpoints_of(network))))
}

fn endpoints_of(network: &NetworkArgs) -> String {
    let endpoints: Vec<&str> = network
        .connect
        .iter()
        .chain(&network.listen)
        .map(String::as_str)
        .collect();
    match endpoints.is_empty() {
        true => String::new(),
        false => format!(
            " (endpoints {}): is a router or peer there, and is the endpoint written as tcp/HOST:PORT?",
            endpoints.join(", ")
        ),
    }
}

fn configuration(network: &NetworkArgs) -> Result<Config, BridgeError> {
    if let Some(path) = &network.config {
        return Config::from_file(path)
            .map_err(|error| BridgeError::Usage(format!("--config {}: {error}", path.display())));
    }

    let mut config = Config::default();
    if network.connect.is_empty() && network.listen.is_empty() {
        return Ok(config);
    }
    // A router passes nothing on between peers, which have to reach each other; a client reaches whoever the router does.
    let mode = match network.listen.is_empty() {
        true => "client",
        false => "peer",
    };
    let settings = [
        ("mode", format!("{mode:?}")),
        // Who names endpoints wants these peers and no strangers.
        ("scouting/multicast/enabled", "false".to_owned()),
        ("connect/endpoints", json_list(&network.connect)),
        ("listen/endpoints", json_list(&network.listen)),
        ("connect/timeout_ms", CONNECT_MS.to_string()),
        ("connect/exit_on_failure", "true".to_owned()),
    ];
    for (key, value) in settings {
        let result = config.insert_json5(key, &value);
        result.map_err(|error| {
            BridgeError::Usage(format!("Zenoh does not take {key} = {value}: {error}"))
        })?;
    }
    Ok(config)
}

fn json_list(texts: &[String]) -> String {
    serde_json::Value::from(texts).to_string()
}
