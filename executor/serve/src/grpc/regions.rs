//! Regions of shared memory: registered, forgotten, listed.

use tonic::Status;

use crate::protocol::messages::{
    Empty, RegionRegisterRequest, RegionRequest, RegionStatus, RegionStatusResponse,
};
use crate::server::Server;
use crate::shared_memory::{RegionError, RegionInfo};

pub(super) fn status(
    server: &Server,
    asked: &RegionRequest,
) -> Result<RegionStatusResponse, Status> {
    let regions = server.regions().status(name_of(asked)).map_err(refused)?;
    let listed = regions.into_iter().map(|region| {
        let status = RegionStatus {
            name: region.name.clone(),
            key: region.key,
            offset: region.offset,
            byte_size: region.size,
        };
        (region.name, status)
    });
    Ok(RegionStatusResponse {
        regions: listed.collect(),
    })
}

pub(super) fn register(server: &Server, asked: RegionRegisterRequest) -> Result<Empty, Status> {
    let info = RegionInfo {
        name: asked.name,
        key: asked.key,
        offset: asked.offset,
        size: asked.byte_size,
    };
    server.regions().register(info).map_err(refused)?;
    Ok(Empty {})
}

pub(super) fn unregister(server: &Server, asked: &RegionRequest) -> Result<Empty, Status> {
    let outcome = server.regions().unregister(name_of(asked));
    outcome.map_err(refused)?;
    Ok(Empty {})
}

/// Without a name it is about all regions.
fn name_of(asked: &RegionRequest) -> Option<&str> {
    (!asked.name.is_empty()).then_some(asked.name.as_str())
}

fn refused(refusal: RegionError) -> Status {
    let what = refusal.to_string();
    match refusal {
        RegionError::Off => Status::permission_denied(what),
        RegionError::Unknown { .. } => Status::not_found(what),
        RegionError::TooMany => Status::resource_exhausted(what),
        RegionError::Twice { .. } => Status::already_exists(what),
        _ => Status::invalid_argument(what),
    }
}
