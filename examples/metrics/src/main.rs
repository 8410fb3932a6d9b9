//! Which metrics there are, and which of them are on unless you say otherwise.
//!
//! ```sh
//! cargo run -p metrics
//! ```

use evenkeel::Metric;

fn main() {
    println!("on  {:<58} {:<20} what", "name", "unit");
    for metric in Metric::ALL {
        let on = if metric.is_on_by_default() { "yes" } else { "-" };
        println!("{on:<3} {:<58} {:<20} {}", metric.name(), metric.unit(), metric.description());
    }
}
