//! The three attentions of an encoder-decoder.

use regard_kernels::{Error, Mechanism, mechanism::Position, support::SupportKind};

use super::{AttentionConfig, reads_second_sequence};

/// Options of the attentions of an encoder-decoder (Vaswani et al. 2017, section 3.2.3).
///
/// What each place demands holds whatever the options say: the decoder alone is causal; attention to the encoder has no
/// window, and neither rotary positions nor ALiBi, as a distance between tokens of two languages means nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Attentions {
    /// Of the source to itself.
    pub encoder: AttentionConfig,
    /// Of the target to itself and the tokens before it.
    pub decoder: AttentionConfig,
    /// Of the target to the encoded source.
    pub cross: AttentionConfig,
}

impl From<&AttentionConfig> for Attentions {
    /// The same options in all three places, as they are: [`Attentions::placed`] gives each what it demands.
    fn from(options: &AttentionConfig) -> Self {
        Self { encoder: options.clone(), decoder: options.clone(), cross: options.clone() }
    }
}

impl Attentions {
    /// Each with its name in errors.
    pub fn named(&self) -> [(&'static str, &AttentionConfig); 3] {
        [(ENCODER, &self.encoder), (DECODER, &self.decoder), (CROSS, &self.cross)]
    }

    /// The same with what each place demands.
    #[must_use]
    pub fn placed(self) -> Self {
        let position = match self.cross.position {
            Position::Rotary | Position::Alibi => Position::None,
            other => other,
        };
        Self {
            encoder: AttentionConfig { causal: false, ..self.encoder },
            decoder: AttentionConfig { causal: true, ..self.decoder },
            cross: AttentionConfig { causal: false, window: None, position, ..self.cross },
        }
    }

    /// Checks what can be known before any tensor is seen.
    ///
    /// # Errors
    /// Options that a place cannot have; the error names the place.
    pub fn check(&self) -> Result<(), Error> {
        let placed = self.clone().placed();
        for (place, options) in placed.named() {
            options.check().map_err(|error| at(place, error))?;
        }
        let cross = &placed.cross;
        if !reads_second_sequence(cross) {
            let readers = Mechanism::ALL.iter().filter(|mechanism| mechanism.facts().cross);
            let readers: Vec<_> = readers.map(|mechanism| mechanism.name()).collect();
            let expected = format!("a mechanism that reads a second sequence: one of {}", readers.join(", "));
            return Err(at(CROSS, Error::option("mechanism", cross.label(), expected)));
        }
        let independent = matches!(cross.support.kind, SupportKind::Full | SupportKind::Empty);
        if cross.uses_support() && !independent {
            let expected = "'full' or 'empty': under other supports what a query sees depends on how many queries there \
                            are, and a decoder does not know";
            return Err(at(CROSS, Error::option("support.kind", format!("'{}'", cross.support.name()), expected)));
        }
        let sinusoidal = |options: &AttentionConfig| options.position == Position::Sinusoidal;
        if sinusoidal(&placed.encoder) != sinusoidal(&placed.decoder) {
            let seen = format!("{:?}", placed.decoder.position).to_lowercase();
            let encoder = format!("{:?}", placed.encoder.position).to_lowercase();
            let expected = format!("the encoder's '{encoder}': sinusoidal positions scale the token vectors of both");
            return Err(at(DECODER, Error::option("position", format!("'{seen}'"), expected)));
        }
        Ok(())
    }
}

/// Names of the places.
pub(crate) const ENCODER: &str = "encoder attention";
pub(crate) const DECODER: &str = "decoder attention";
pub(crate) const CROSS: &str = "cross attention";

/// The error with the place where it arose.
pub(crate) fn at(place: &str, error: Error) -> Error {
    let named = |what: String| format!("{place}: {what}");
    match error {
        Error::Option { option, seen, expected } => Error::Option { option: named(option), seen, expected },
        Error::Shape { tensor, seen, expected } => Error::Shape { tensor: named(tensor), seen, expected },
        Error::Missing { tensor, why } => Error::Missing { tensor: named(tensor), why },
        Error::Budget { seen, expected } => Error::Option { option: named("budget".into()), seen, expected },
        other => other,
    }
}
