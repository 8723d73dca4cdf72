//! Paths: from a method and a path to what is answered. Queries are not looked at.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};

use super::body::discard;
use super::documents;
use super::infer::answer_infer;
use super::metrics::metrics_text;
use super::reply::{Reply, error, health, json, metrics, unauthorized};
use super::{regions, repository};
use crate::engine::RunningModel;
use crate::protocol::answer::VERSION;
use crate::server::Server;

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'p> {
    Live,
    Ready,
    Server,
    Stats,
    RepositoryIndex,
    /// Loads a model.
    Load(&'p str),
    Unload(&'p str),
    Metrics,
    Model(&'p str, ModelRoute),
    Regions(RegionRoute<'p>),
}

/// What a path asks of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionRoute<'p> {
    /// Of one region, or of all.
    Status(Option<&'p str>),
    Register(&'p str),
    /// One region, or all.
    Unregister(Option<&'p str>),
    /// That of GPUs, of which there is none here.
    Cuda,
    CudaUnregister,
}

/// What a path asks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelRoute {
    Metadata,
    Ready,
    Config,
    Stats,
    Infer,
}

impl Route<'_> {
    /// Nothing if there is no such path.
    fn of(path: &str) -> Option<Route<'_>> {
        let path = path.strip_prefix('/')?;
        let parts: Vec<&str> = path.split('/').take(8).collect();
        Some(match parts.as_slice() {
            ["metrics"] => Route::Metrics,
            ["v2"] | ["v2", ""] => Route::Server,
            ["v2", "health", "live"] => Route::Live,
            ["v2", "health", "ready"] => Route::Ready,
            ["v2", "models", "stats"] => Route::Stats,
            ["v2", "repository", "index"] => Route::RepositoryIndex,
            ["v2", "repository", "models", name, "load"] => Route::Load(name),
            ["v2", "repository", "models", name, "unload"] => Route::Unload(name),
            ["v2", "systemsharedmemory", rest @ ..] => Route::Regions(RegionRoute::of(rest)?),
            ["v2", "cudasharedmemory", "status"] => Route::Regions(RegionRoute::Cuda),
            ["v2", "cudasharedmemory", "unregister"] => Route::Regions(RegionRoute::CudaUnregister),
            ["v2", "models", name, "versions", version, rest @ ..] if *version == VERSION => {
                Route::Model(name, ModelRoute::of(rest)?)
            }
            ["v2", "models", name, rest @ ..] => Route::Model(name, ModelRoute::of(rest)?),
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Self::RepositoryIndex
            | Self::Load(_)
            | Self::Unload(_)
            | Self::Model(_, ModelRoute::Infer)
            | Self::Regions(
                RegionRoute::Register(_) | RegionRoute::Unregister(_) | RegionRoute::CudaUnregister,
            ) => Method::POST,
            _ => Method::GET,
        }
    }
}

impl<'p> RegionRoute<'p> {
    fn of(rest: &[&'p str]) -> Option<Self> {
        Some(match rest {
            ["status"] => Self::Status(None),
            ["region", name, "status"] => Self::Status(Some(name)),
            ["region", name, "register"] => Self::Register(name),
            ["region", name, "unregister"] => Self::Unregister(Some(name)),
            ["unregister"] => Self::Unregister(None),
            _ => return None,
        })
    }
}

impl ModelRoute {
    fn of(rest: &[&str]) -> Option<Self> {
        Some(match rest {
            [] => Self::Metadata,
            ["ready"] => Self::Ready,
            ["config"] => Self::Config,
            ["stats"] => Self::Stats,
            ["infer"] => Self::Infer,
            _ => return None,
        })
    }
}

/// Answers a request.
pub(super) async fn answer(server: &Arc<Server>, request: Request<Incoming>) -> Reply {
    if !server.lets_in(request.headers()) {
        discard(request.into_body(), server.limits().body_timeout).await;
        return unauthorized();
    }
    let path = request.uri().path().to_owned();
    let Some(route) = Route::of(&path) else {
        let path: String = path.chars().take(100).collect();
        return error(
            StatusCode::NOT_FOUND,
            &format!("there is nothing at {path}"),
        );
    };
    let method = route.method();
    if *request.method() != method {
        let what = format!("this path takes {method} and not {}", request.method());
        let mut reply = error(StatusCode::METHOD_NOT_ALLOWED, &what);
        if let Ok(allowed) = HeaderValue::from_str(method.as_str()) {
            reply.headers_mut().insert(ALLOW, allowed);
        }
        return reply;
    }

    match route {
        Route::Live => health(true),
        Route::Ready => health(server.is_ready()),
        Route::Server => json(&documents::server(server)),
        Route::Stats => json(&documents::stats(&server.models())),
        Route::RepositoryIndex => json(&documents::repository_index(server)),
        Route::Load(name) => repository::load(server, name, request).await,
        Route::Unload(name) => repository::unload(server, name, request).await,
        Route::Metrics => metrics(metrics_text(server)),
        Route::Regions(RegionRoute::Status(name)) => regions::status(server, name),
        Route::Regions(RegionRoute::Register(name)) => {
            regions::register(server, name, request).await
        }
        Route::Regions(RegionRoute::Unregister(name)) => regions::unregister(server, name),
        // No region of a GPU is ever registered.
        Route::Regions(RegionRoute::Cuda) => json(&serde_json::json!([])),
        Route::Regions(RegionRoute::CudaUnregister) => json(&serde_json::json!({})),
        Route::Model(name, asked) => match server.model(name) {
            Some(running) => answer_of_model(server, &running, asked, request).await,
            None => error(StatusCode::NOT_FOUND, &server.unknown_model(name)),
        },
    }
}

async fn answer_of_model(
    server: &Server,
    running: &Arc<RunningModel>,
    asked: ModelRoute,
    request: Request<Incoming>,
) -> Reply {
    match asked {
        ModelRoute::Metadata => json(&documents::model(running)),
        ModelRoute::Ready => health(running.is_ready()),
        ModelRoute::Config => json(&documents::config(running)),
        ModelRoute::Stats => json(&documents::stats([running])),
        ModelRoute::Infer => answer_infer(server, running, request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_protocol() {
        let model = |asked| Some(Route::Model("m", asked));
        for (path, expected) in [
            ("/v2", Some(Route::Server)),
            ("/v2/", Some(Route::Server)),
            ("/v2/health/live", Some(Route::Live)),
            ("/v2/health/ready", Some(Route::Ready)),
            ("/v2/models/stats", Some(Route::Stats)),
            ("/v2/repository/index", Some(Route::RepositoryIndex)),
            ("/metrics", Some(Route::Metrics)),
            ("/v2/repository/models/m/load", Some(Route::Load("m"))),
            ("/v2/repository/models/m/unload", Some(Route::Unload("m"))),
            ("/v2/repository/models/a/b/load", None),
            (
                "/v2/systemsharedmemory/region/r/register",
                Some(Route::Regions(RegionRoute::Register("r"))),
            ),
            (
                "/v2/systemsharedmemory/unregister",
                Some(Route::Regions(RegionRoute::Unregister(None))),
            ),
            ("/v2/systemsharedmemory/region/r", None),
            ("/v2/models/m", model(ModelRoute::Metadata)),
            ("/v2/models/m/ready", model(ModelRoute::Ready)),
            ("/v2/models/m/config", model(ModelRoute::Config)),
            ("/v2/models/m/stats", model(ModelRoute::Stats)),
            ("/v2/models/m/infer", model(ModelRoute::Infer)),
            ("/v2/models/m/versions/1", model(ModelRoute::Metadata)),
            ("/v2/models/m/versions/1/infer", model(ModelRoute::Infer)),
            ("/v2/models/m/versions/2/infer", None),
            ("/v2/models/m/infer/", None),
            ("/v2/models/m/generate", None),
            ("/", None),
            ("", None),
            ("*", None),
            ("//v2", None),
            ("/v2/models/../m", None),
        ] {
            assert_eq!(Route::of(path), expected, "{path}");
        }
    }
}
