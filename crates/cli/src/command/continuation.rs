//! `regard generate` with a model folder.

use regard_pretrained::{
    Message, Model, Tokenizer,
    run::{Finish, GenerateOptions, Generated, Sampling, generate},
};
use serde_json::json;

use super::{
    folder::{Opened, Watch, told},
    generate::{Generate, TEMPERATURE},
};
use crate::{
    args::Common,
    console,
    error::{Failure, Outcome},
    output,
};

/// Default maximum number of new tokens, if neither the command nor the folder gives one.
const NEW_TOKENS: usize = 200;

/// Streams a continuation, or the answer to a message.
///
/// # Errors
/// A folder without a language model, a prompt that is empty or too long, options outside their range.
pub fn run(args: &Generate, common: &Common) -> Outcome {
    let opened = Opened::new(&args.run, &args.loading)?;
    if !matches!(opened.pretrained.model, Model::Language(_)) {
        return Err(opened.another("one that predicts the next token, such as Llama or GPT-2"));
    }
    let tokenizer = opened.tokenizer()?;
    let usual = opened.folder.generation().map_err(told)?;
    let sampling = Sampling {
        temperature: args.temperature.unwrap_or(match usual.sample {
            Some(true) => usual.temperature,
            Some(false) => 0.0,
            None => TEMPERATURE,
        }),
        top_k: args.top_k.or(usual.top_k),
        top_p: args.top_p.or(usual.top_p),
        min_p: args.min_p.or(usual.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(usual.repetition_penalty),
        seed: args.seed,
    };
    sampling.check()?;
    let prompt = prompt(args, &tokenizer, usual.bos)?;
    let mut end = usual.eos.clone();
    end.extend(tokenizer.special().eos);
    let left = usual.length.map(|length| length.saturating_sub(prompt.len()).max(1));
    let new_tokens = args.tokens.or(usual.new_tokens).or(left).unwrap_or(NEW_TOKENS);
    let options = GenerateOptions { sampling, new_tokens, stop: args.stop.clone(), end, storage: args.kv_cache };

    // Token by token, reading the weights takes most of the time.
    let storage = opened.storage();
    let Model::Language(model) = opened.pretrained.compact(storage)?.model else { unreachable!("it was one") };
    let watch = Watch::new("tokens", common);
    let mut written = Ok(());
    // The prompt is printed with the first piece: before that, it may still be refused.
    let mut lead = args.prompt.as_deref().filter(|_| !args.chat).unwrap_or_default();
    let told = generate(&model, &tokenizer, &prompt, &options, |text| {
        if !common.json {
            written = output::text(format_args!("{}{text}", std::mem::take(&mut lead)));
            if written.is_err() {
                return std::ops::ControlFlow::Break(());
            }
        }
        watch.go_on()
    })
    .map_err(told)?;
    written?;
    if common.json {
        output::json(&summary(&told))?;
    } else {
        output::line(lead)?;
        if !common.quiet {
            console::line(timings(&told));
        }
    }
    watch.complete(told.finish != Finish::Interrupted)
}

/// The tokens of the prompt: a text, or a conversation.
fn prompt(args: &Generate, tokenizer: &Tokenizer, bos: Option<u32>) -> Outcome<Vec<u32>> {
    let text = args.prompt.as_deref().unwrap_or_default();
    if args.chat {
        let system = args.system.iter().map(|system| Message::new("system", system));
        let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
        let text = tokenizer.chat(&messages, true).map_err(told)?;
        return Ok(tokenizer.encode(&text, false, None).map_err(told)?.ids);
    }
    let mut ids = tokenizer.encode(text, true, None).map_err(told)?.ids;
    if ids.is_empty() {
        ids.extend(tokenizer.special().bos.or(bos));
    }
    if ids.is_empty() {
        return Err(Failure::usage("--prompt is empty, expected a text: the model has no token that begins one"));
    }
    Ok(ids)
}

fn summary(told: &Generated) -> serde_json::Value {
    json!({
        "text": told.text,
        "tokens": told.tokens,
        "finish": told.finish,
        "prompt_tokens": told.prompt_tokens,
        "prefill_seconds": told.prefill_seconds,
        "prefill_tokens_per_second": told.prefill_speed(),
        "decoded_tokens": told.decoded_tokens,
        "decode_seconds": told.decode_seconds,
        "decode_tokens_per_second": told.decode_speed(),
        "state_bytes": told.state_bytes,
    })
}

fn timings(told: &Generated) -> String {
    let why = match told.finish {
        Finish::End => "the model ended the text",
        Finish::Stop => "a stop text came",
        Finish::Length => "as many as asked for",
        Finish::Context => "the context is full",
        Finish::Interrupted => "stopped",
    };
    let state = told.state_bytes as f64 / f64::from(1 << 20);
    format!(
        "prompt: {} tokens, {:.1} tokens/s; new: {} tokens, {:.1} tokens/s ({why}); state: {state:.1} MiB",
        told.prompt_tokens,
        told.prefill_speed(),
        told.tokens.len(),
        told.decode_speed()
    )
}
