//! Parts on real sockets: backends that can be killed, a control plane that can be scripted, and peers that misbehave.
//!
//! [`Backend`] and [`ControlPlane`] are tonic servers, each on a thread with a runtime of its own: they live on while a
//! test blocks, keep their own time, and can be killed as a process can. Ports are free ones and stay theirs over
//! restarts. Both record what they see and wait for conditions: [`Backend::wait_until`], [`ControlPlane::wait_until`].
//! A wait that lasts 30 seconds has failed, and says how things stand. Under paused time that bound comes at once.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use testkit::net::echo::{EchoRequest, echo_client::EchoClient};
//! use testkit::net::{Backend, ControlPlane};
//!
//! let backends = [Backend::start().await, Backend::start().await];
//! let control = ControlPlane::start().await;
//! control.serve("orders", "pay", &backends.each_ref().map(Backend::address));
//! let bootstrap = control.bootstrap("my-node"); // for `xds:///orders`
//!
//! // A channel under test takes the place of this one.
//! let channel = tonic::transport::Endpoint::new(format!("http://{}", backends[0].address()))?.connect_lazy();
//! let mut client = EchoClient::new(channel);
//! let response = client.unary(EchoRequest { payload: b"hello".to_vec(), ..EchoRequest::default() }).await?;
//! assert_eq!(response.into_inner().backend, backends[0].name());
//! backends[0].wait_until(|backend| backend.in_flight() == 0).await;
//!
//! backends[0].kill();
//! control.set_endpoints("pay", &[backends[1].address()]);
//! backends[0].restart().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod backend;
pub mod certs;
pub mod control;
pub mod frames;
mod host;
pub mod proxy;
pub mod soak;

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
