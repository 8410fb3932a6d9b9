//! Validation of meshes: errors in the file, then the client's parse of its resources.

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_control::Mesh;
use evenkeel_core::Description;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::prost::Message;
use evenkeel_xds::resource::ResourceType;

use super::locate::{locate_entry, locate_key};
use super::{Finding, ValidationReport, count};
use crate::explain::known::LocalResources;
use crate::explain::local_bootstrap;
use crate::explain::walk::ClientSimulation;
use crate::input;

pub(super) fn verdict(file: &Path, text: &str) -> ValidationReport {
    let subject = input::name(file);
    let mesh = match Mesh::from_yaml(text) {
        Ok(mesh) => mesh,
        Err(errors) => {
            let findings = errors
                .iter()
                .map(|error| Finding::error(&error.text).path(&error.path).at(error.line.zip(error.column)));
            return ValidationReport { subject, findings: findings.collect(), summary: None };
        }
    };
    let known = LocalResources::of_mesh(&mesh);
    let mut findings = of_resources(&known, text);
    findings.extend(of_services(&mesh, &known, text));
    ValidationReport { subject, findings, summary: Some(summary(&known)) }
}

/// Returns the errors of rejected resources, with all field paths, and the ignored fields of the others.
fn of_resources(known: &LocalResources, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (kind, name, read) in known.iter() {
        let section = match kind {
            ResourceType::Listener | ResourceType::RouteConfig => "services",
            ResourceType::Cluster | ResourceType::Endpoints => "clusters",
        };
        let about = |finding: Finding| {
            finding.resource(format!("{kind} {name:?}")).at(locate_entry(text, section, name))
        };
        match &read.read {
            Ok(parsed) => findings.extend(parsed.warnings.iter().map(Finding::warning).map(about)),
            Err(rejected) => {
                let problems = rejected.problems.iter();
                findings.extend(problems.map(|p| {
                    let finding = about(Finding::error(format!("would be NACKed: {}", p.text)).path(&p.path));
                    // The policy has a key of its own in the mesh.
                    let is_policy =
                        kind == ResourceType::Cluster && p.path.starts_with("load_balancing_policy");
                    if is_policy { finding.at(locate_key(text, section, name, "policy")) } else { finding }
                }));
            }
        }
    }
    findings
}

/// Returns services whose calls would fail although every resource is valid. Each cluster is reported once.
fn of_services(mesh: &Mesh, known: &LocalResources, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    for service in mesh.services() {
        let Ok(target) = local_bootstrap().listener_name(&format!("xds:///{service}")) else {
            let what = "cannot be a target: expected a name that is valid in xds:///NAME";
            findings.push(Finding::error(what).path(format!("services.{service}")));
            continue;
        };
        let mut walk = ClientSimulation::new(known, target.listener.as_str(), &target.authority);
        let place = locate_entry(text, "services", service);
        if let Err(status) = &walk.route {
            let what = format!("every call fails: {}", status.message());
            findings.push(Finding::error(what).path(format!("services.{service}")).at(place));
        }
        let clusters = walk.config().map(|config| config.virtual_host.clusters.clone()).unwrap_or_default();
        for cluster in clusters {
            if !told.insert(cluster.clone()) || is_rejected(known, &cluster) {
                continue;
            }
            let place = locate_entry(text, "clusters", &cluster);
            let about = |finding: Finding| finding.path(format!("clusters.{cluster}")).at(place);
            if let Err(status) = walk.pick(("/", &()), &format!("cluster:{cluster}"), 0) {
                findings.push(about(Finding::error(format!("every call fails: {}", status.message()))));
            }
            findings.extend(policy_warnings(&walk, &cluster).into_iter().map(Finding::warning).map(about));
        }
    }
    findings
}

/// Returns the distinct warnings of a cluster's policies.
fn policy_warnings(walk: &ClientSimulation, cluster: &str) -> BTreeSet<String> {
    let child = format!("cluster:{cluster}");
    let tree = walk.tree().and_then(|root| root.children.into_iter().find(|(name, _)| *name == child));
    let mut warnings = BTreeSet::new();
    let mut open: Vec<Description> = tree.into_iter().map(|(_, description)| description).collect();
    while let Some(policy) = open.pop() {
        warnings.extend(policy.warnings);
        open.extend(policy.children.into_iter().map(|(_, child)| child));
    }
    warnings
}

/// Returns true if the cluster, or its endpoints, was rejected and therefore reported.
fn is_rejected(known: &LocalResources, cluster: &str) -> bool {
    let kinds = [ResourceType::Cluster, ResourceType::Endpoints];
    kinds.iter().any(|kind| known.find(*kind, cluster).is_some_and(|found| found.read.is_err()))
}

/// Summarizes a mesh: `2 services, 3 clusters, 14 endpoints`.
pub(crate) fn summary(known: &LocalResources) -> String {
    let of = |kind: ResourceType| known.iter().filter(move |(found, ..)| *found == kind);
    let messages = of(ResourceType::Endpoints)
        .filter_map(|(.., read)| ClusterLoadAssignment::decode(&read.raw.value[..]).ok());
    let endpoints =
        messages.flat_map(|message| message.endpoints).map(|locality| locality.lb_endpoints.len()).sum();
    let services = count(of(ResourceType::Listener).count(), "service");
    let clusters = count(of(ResourceType::Cluster).count(), "cluster");
    format!("{services}, {clusters}, {}", count(endpoints, "endpoint"))
}
