//! Expert statistics as tables, charts, files and an HTML page.

use regard_report::{Axis, Block, Cell, Chart, Column, Data, Format, Report, Section, Series, Table};
use regard_tasks::train::Environment;
use serde::Serialize;
use serde_json::json;

use super::tally::{Load, Preference};
use crate::record::{Record, Shown};

/// One router of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Router {
    /// Its name, as in `encoder 1`.
    pub name: String,
    /// The attention it belongs to, as in `encoder`: routers of one place share a chart.
    pub place: &'static str,
    /// How evenly it spreads tokens.
    pub load: Load,
    /// The preferred tokens of each expert.
    pub preferences: Vec<Vec<Preference>>,
    /// Mutual information of token and expert, in nats, less that of chance.
    pub information: f64,
}

/// The routers of a model on some data, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct Experts {
    /// Routers, bottom to top.
    pub routers: Vec<Router>,
    /// Tokens as text, by id.
    pub texts: Vec<String>,
    /// Short description of the data.
    pub source: String,
    /// Minimum occurrences of a listed token.
    pub least: u64,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

impl Experts {
    /// One row per router.
    pub fn loads(&self) -> Table {
        let ratio = |name: &str| Column::number(name, Format::Ratio);
        let number = |name: &str| Column::number(name, Format::Fixed(3));
        let columns = vec![
            Column::text("router"),
            Column::number("experts", Format::Plain),
            Column::number("active", Format::Plain),
            Column::number("tokens", Format::Plain),
            ratio("least load"),
            ratio("largest load"),
            Column::number("entropy of loads", Format::Percent(1)),
            number("router entropy").unit("nat"),
            number("balance loss"),
            number("z-loss"),
            number("told by tokens").unit("nat"),
        ];
        let mut table = Table::new(format!("Load of experts, {}", self.source), columns);
        for Router { name, load, information, .. } in &self.routers {
            let (least, most) = load.extremes();
            table.push(vec![
                name.as_str().into(),
                load.experts.into(),
                load.active.into(),
                load.tokens.into(),
                least.into(),
                most.into(),
                evenness(&load.shares),
                load.entropy.into(),
                load.balance.into(),
                load.z.into(),
                (*information).into(),
            ]);
        }
        table.note(
            "Loads: shares of (token, slot) pairs, as multiples of an even share; their entropy as a share of the largest \
             possible. Router entropy: mean over tokens, before the choice. Balance loss: 1 when balanced, experts / active \
             when collapsed. Told by tokens: mutual information of token and expert, less that of chance. Padding is not counted.",
        )
    }

    /// One row per expert of one router: its load and its preferred tokens.
    pub fn tokens(&self, router: &Router) -> Table {
        let columns = vec![
            Column::text("expert"),
            Column::number("load", Format::Percent(1)),
            Column::text("preferred tokens (PMI in nat)"),
        ];
        let mut table = Table::new(format!("Preferred tokens, {}", router.name), columns);
        for (expert, preferred) in router.preferences.iter().enumerate() {
            let words: Vec<String> =
                preferred.iter().map(|p| format!("{} ({:.2})", self.text(p.token), p.information)).collect();
            table.push(vec![expert.to_string().into(), router.load.shares[expert].into(), words.join(", ").into()]);
        }
        table.note(format!(
            "PMI: ln p(token, expert) / (p(token) p(expert)) over (token, slot) pairs; tokens that occur at least {} times.",
            self.least
        ))
    }

    /// Loads of the experts of each router, sorted, one line per router, one chart per place.
    fn load_charts(&self) -> Vec<Block> {
        let mut places: Vec<&str> = Vec::new();
        for router in &self.routers {
            if !places.contains(&router.place) {
                places.push(router.place);
            }
        }
        let chart = |place: &str| {
            let routers: Vec<&Router> = self.routers.iter().filter(|router| router.place == place).collect();
            Block::Chart { name: format!("load-{place}"), chart: self.load_chart(&routers, place) }
        };
        places.into_iter().map(chart).collect()
    }

    fn load_chart(&self, routers: &[&Router], place: &str) -> Chart {
        let line = |(style, router): (usize, &&Router)| {
            let mut shares = router.load.shares.clone();
            shares.sort_by(|a, b| b.total_cmp(a));
            Series::new(&*router.name, style, shares.into_iter().enumerate().map(|(rank, x)| (rank as f64 + 1.0, x)))
        };
        let series = routers.iter().enumerate().map(line).collect();
        let loads = routers.iter().map(|router| &router.load);
        let (experts, highest) = loads.fold((1, 0.0f64), |(experts, highest), load| {
            (experts.max(load.experts), load.shares.iter().fold(highest, |most, share| most.max(*share)))
        });
        let shares = Axis::new("share of (token, slot) pairs", "%").range(0.0, 1.05 * highest);
        Chart::new(
            format!("Load of experts, {place}"),
            format!("{}; experts sorted by load", self.source),
            Data::Lines(series),
        )
        .axes(Axis::new("expert, by rank", "").whole(), shares)
        .rule(1.0 / experts as f64, "even")
    }

    fn named(&self, preferences: &[Preference]) -> Vec<serde_json::Value> {
        let one = |p: &Preference| json!({ "token": p.token, "text": self.text(p.token), "information": p.information, "seen": p.seen });
        preferences.iter().map(one).collect()
    }

    fn text(&self, token: i32) -> &str {
        usize::try_from(token).ok().and_then(|id| self.texts.get(id)).map_or("?", |text| text)
    }

    /// A sentence with the extremes over all routers.
    fn summary(&self) -> String {
        let ends = self.routers.iter().map(|router| router.load.extremes());
        let (least, most) = ends.fold((f64::INFINITY, 0.0f64), |(low, high), (l, h)| (low.min(l), high.max(h)));
        format!(
            "{}. Over {} routers the least loaded expert has {least:.2} times an even share, the most loaded one {most:.2} \
             times.",
            self.source,
            self.routers.len()
        )
    }
}

impl Shown for Experts {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let tokens = self.routers.iter().map(|router| Block::Table(self.tokens(router))).collect();
        let loads = [Block::Table(self.loads())].into_iter().chain(self.load_charts()).collect();
        Report {
            title: "What the experts do".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Load".into(), blocks: loads },
                Section { title: "Tokens".into(), blocks: tokens },
            ],
        }
    }

    fn tables(&self) -> Vec<Table> {
        [self.loads()].into_iter().chain(self.routers.iter().map(|router| self.tokens(router))).collect()
    }

    fn to_json(&self) -> serde_json::Value {
        let routers: Vec<_> = self
            .routers
            .iter()
            .map(|router| {
                let preferences: Vec<Vec<_>> = router.preferences.iter().map(|own| self.named(own)).collect();
                json!({
                    "name": router.name,
                    "load": router.load,
                    "preferences": preferences,
                    "information": router.information,
                })
            })
            .collect();
        json!({
            "source": self.source,
            "least": self.least,
            "command": self.command,
            "environment": self.environment,
            "routers": routers,
        })
    }
}

/// Entropy of shares divided by that of uniform ones.
fn evenness(shares: &[f64]) -> Cell {
    let entropy: f64 = shares.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln()).sum();
    if shares.len() > 1 { Cell::Number(entropy / (shares.len() as f64).ln()) } else { Cell::Empty }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_shares_have_the_largest_entropy() {
        assert!((evenness(&[0.25; 4]).value().unwrap() - 1.0).abs() < 1e-12);
        assert!((evenness(&[0.5, 0.5, 0.0, 0.0]).value().unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(evenness(&[1.0]), Cell::Empty);
    }
}
