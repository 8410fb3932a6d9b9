//! Parts on real sockets: backends that can be killed, a control plane that can be scripted, and peers that misbehave.

pub mod backend;
pub mod certs;
pub mod control;
pub mod frames;
mod host;
pub mod proxy;

use std::time::Duration;

use tokio::sync::Notify;

pub use backend::Backend;
pub use control::ControlPlane;
pub use host::Tls;

/// The echo service: client, server and messages.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod echo {
    include!("generated/evenkeel.test.rs");
}

/// The client of the service that tells what a client knows.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod csds {
    include!("generated/envoy.service.status.v3.rs");
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod discovery {
    include!("generated/envoy.service.discovery.v3.rs");
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod load_stats {
    include!("generated/envoy.service.load_stats.v3.rs");
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod orca {
    include!("generated/xds.service.orca.v3.rs");
}

/// Only a failure waits this long.
const LONG: Duration = Duration::from_secs(30);

/// Waits until `look` finds what it looks for, looking again whenever `changed` is told. Panics with `describe`.
async fn wait_until<T>(
    changed: &Notify,
    mut look: impl FnMut() -> Option<T>,
    describe: impl FnOnce() -> String,
) -> T {
    let found = async {
        loop {
            let change = changed.notified();
            tokio::pin!(change);
            // From here on no change is missed.
            change.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            change.await;
        }
    };
    let found = tokio::time::timeout(LONG, found).await;
    found.unwrap_or_else(|_| panic!("waited in vain; {}", describe()))
}
