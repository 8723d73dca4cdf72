//! Who is let in: encryption, certificates of clients, bearer tokens, over HTTP and gRPC.

#![cfg(all(target_os = "linux", feature = "grpc", feature = "tls"))]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{Models, PATIENCE, Server, simple_request, wait_until};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use zbmd_serve::testing::messages::*;

/// A certificate and its key, as PEM.
struct Identity {
    certificate: String,
    key: String,
}

/// Somebody who signs certificates.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    fn sign(&self, name: &str) -> Identity {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Files for the command line of a server.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    /// Options for a server with a certificate of an authority.
    fn encrypted(&self, authority: &Authority) -> Vec<String> {
        let identity = authority.sign("localhost");
        vec![
            "--tls-certificate".to_owned(),
            self.write("server.pem", &identity.certificate),
            "--tls-key".to_owned(),
            self.write("server.key", &identity.key),
        ]
    }
}

fn start(options: &[String]) -> Server {
    let mut all = vec!["--isolation", "threads", "--header-timeout", "2s"];
    all.extend(options.iter().map(String::as_str));
    Models::simple().start(&all)
}

/// A client that trusts an authority, and shows a certificate if it has one.
fn client(authority: &Authority, identity: Option<&Identity>, protocol: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
    roots
        .add(root.expect("a certificate"))
        .expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
            let chain = vec![certificate.expect("a certificate")];
            builder.with_client_auth_cert(chain, key).expect("a pair")
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

/// A request on an encrypted connection of its own; status and text, or why there is none.
fn ask(server: &Server, config: ClientConfig, request: &str) -> std::io::Result<(u16, String)> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection =
        ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((status.unwrap_or(0), answer))
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
}

const LIVE: &str = "/v2/health/live";

/// A request over gRPC on an encrypted connection, with a token if there is one.
fn infer(server: &Server, config: ClientConfig, token: Option<&str>) -> Result<i32, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let address = server.grpc_address();
    runtime.block_on(async {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").expect("a name");
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
        let channel = endpoint.connect_with_connector(connect).await;
        let channel = channel.map_err(|error| Status::unavailable(format!("{error:?}")))?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let mut asked = tonic::Request::new(simple_message());
        if let Some(token) = token {
            let bearer = format!("Bearer {token}").parse().expect("a header");
            asked.metadata_mut().insert("authorization", bearer);
        }
        let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
        let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
        let told = grpc.unary(asked, path, codec).await?.into_inner();
        let sum = &told.raw_output_contents[0];
        Ok(i32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]))
    })
}

fn simple_message() -> ModelInferRequest {
    let input = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1, 16],
        ..Default::default()
    };
    let bytes = |value: i32| value.to_le_bytes().repeat(16).into();
    ModelInferRequest {
        model_name: "simple".to_owned(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![bytes(3), bytes(5)],
        ..Default::default()
    }
}

#[test]
fn connections_are_encrypted() {
    let (files, authority) = (Files::new(), Authority::new());
    let server = start(&files.encrypted(&authority));
    assert!(server.said().contains("listening at https://"));
    let body = simple_request(&[3; 16], &[5; 16]).to_string();
    let request = format!(
        "POST /v2/models/simple/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    wait_until("an answer", || {
        let answer = ask(&server, client(&authority, None, b"http/1.1"), &request);
        answer.is_ok_and(|(status, text)| status == 200 && text.contains("\"data\":[8,8,"))
    });
    let sum = infer(&server, client(&authority, None, b"h2"), None);
    assert_eq!(sum.expect("answered"), 8);

    // Somebody else's authority; no encryption; another protocol.
    let stranger = client(&Authority::new(), None, b"http/1.1");
    ask(&server, stranger, &get(LIVE, "")).expect_err("the server is not known to it");
    let mut plain = server.connect();
    plain.begin("GET", LIVE, &[], b"");
    assert!(plain.reply().is_none_or(|reply| reply.status == 0));
    ask(&server, client(&authority, None, b"smtp"), &get(LIVE, "")).expect_err("no such protocol");
    let failed = || {
        let metrics = ask(
            &server,
            client(&authority, None, b"http/1.1"),
            &get("/metrics", ""),
        );
        let (_, text) = metrics.expect("told");
        let mut lines = text.lines();
        lines.any(|line| line == "zbmd_handshakes_failed_total 3")
    };
    wait_until("three failed handshakes", failed);
}

#[test]
fn clients_show_a_certificate() {
    let (files, authority, of_clients) = (Files::new(), Authority::new(), Authority::new());
    let mut options = files.encrypted(&authority);
    let authorities = files.write("clients.pem", &of_clients.certificate);
    options.extend(["--tls-client-ca".to_owned(), authorities]);
    let server = start(&options);

    let known = of_clients.sign("friend");
    let live = |identity: Option<&Identity>| {
        ask(
            &server,
            client(&authority, identity, b"http/1.1"),
            &get(LIVE, ""),
        )
    };
    assert_eq!(live(Some(&known)).expect("let in").0, 200);
    live(None).expect_err("it shows none");
    let strange = Authority::new().sign("friend");
    live(Some(&strange)).expect_err("of another authority");

    wait_until("a model that is ready", || {
        let answer = infer(&server, client(&authority, Some(&known), b"h2"), None);
        answer.is_ok_and(|sum| sum == 8)
    });
    infer(&server, client(&authority, None, b"h2"), None).expect_err("it shows none");
}

#[test]
fn clients_show_a_token() {
    let (files, authority) = (Files::new(), Authority::new());
    // Of `open sesame`, as `sha256sum` writes it.
    let hash = "41ef4bb0b23661e66301aac36066912dac037827b4ae63a7b1165a5aa93ed4eb  -\n";
    let mut options = files.encrypted(&authority);
    options.extend(["--tokens".to_owned(), files.write("tokens", hash)]);
    let server = start(&options);
    let live = |headers: &str| {
        let config = client(&authority, None, b"http/1.1");
        ask(&server, config, &get(LIVE, headers)).expect("told")
    };
    let (status, text) = live("");
    assert_eq!(status, 401);
    assert!(text.contains("www-authenticate: Bearer\r\n"), "{text}");
    assert_eq!(live("Authorization: Bearer open sesam\r\n").0, 401);
    assert_eq!(live("Authorization: Bearer open sesame\r\n").0, 200);

    let asked = |token| infer(&server, client(&authority, None, b"h2"), token);
    wait_until("a model that is ready", || {
        asked(Some("open sesame")).is_ok()
    });
    for token in [None, Some("open"), Some("")] {
        let refused = asked(token).expect_err("not let in");
        assert_eq!(refused.code(), Code::Unauthenticated, "{token:?}");
    }
}

/// Exit code and words of a server that ends by itself.
fn refusal(options: &[String]) -> (Option<i32>, String) {
    let models = Models::simple();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zbmd-serve"));
    command
        .arg(models.path())
        .args(["--no-grpc", "--isolation", "threads"]);
    let output = command.args(options).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn other_computers_need_encryption_and_a_name() {
    let (files, authority) = (Files::new(), Authority::new());
    let remote = ["--listen".to_owned(), "0.0.0.0:0".to_owned()];
    let encrypted = files.encrypted(&authority);
    let tokens = [
        "--tokens".to_owned(),
        files.write("tokens", &"00".repeat(32)),
    ];
    for (options, what) in [
        (remote.to_vec(), "neither"),
        ([&remote[..], &encrypted].concat(), "encryption alone"),
        ([&remote[..], &tokens].concat(), "tokens alone"),
    ] {
        let (code, said) = refusal(&options);
        assert_eq!(code, Some(2), "{what}: {said}");
        assert!(said.contains("not a loopback address"), "{said}");
    }
    let both = [&remote[..], &encrypted, &tokens].concat();
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    // Listening where everybody could reach it, for the time of this test.
    let server = Models::simple().start(&both);
    assert!(server.said().contains("listening at https://0.0.0.0:"));
}

#[test]
fn files_that_are_something_else_are_named() {
    let (files, authority) = (Files::new(), Authority::new());
    let identity = authority.sign("localhost");
    let certificate = files.write("certificate", &identity.certificate);
    let key = files.write("key", &identity.key);
    let other_key = files.write("other", &authority.sign("localhost").key);
    let empty = files.write("empty", "");
    let options = |certificate: &str, key: &str| {
        let names = ["--tls-certificate", certificate, "--tls-key", key];
        names.map(str::to_owned).to_vec()
    };
    let with = |more: [&str; 2]| {
        let more = more.map(str::to_owned);
        [&options(&certificate, &key)[..], &more].concat()
    };
    for (options, name, what) in [
        (options(&empty, &key), "empty", "no certificate"),
        (options(&certificate, &empty), "empty", "no private key"),
        (options(&certificate, "none"), "none", "no private key"),
        (
            options(&certificate, &other_key),
            "other",
            "does not go with the key",
        ),
        (with(["--tls-client-ca", &key]), "key", "no certificate"),
        (with(["--tokens", "none"]), "none", "No such file"),
        (
            with(["--tokens", &certificate]),
            "certificate",
            ":1: a line begins with",
        ),
    ] {
        let (code, said) = refusal(&options);
        assert_eq!(code, Some(4), "{said}");
        let is_named = said.contains(what) && said.contains(&Path::new(name).display().to_string());
        assert!(is_named, "{name}, {what}: {said}");
    }
    // A certificate without its key.
    let (code, _) = refusal(&options(&certificate, &key)[..2]);
    assert_eq!(code, Some(2));
}
