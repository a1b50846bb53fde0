//! Parameters and buffers of layers: how many there are, what is drawn when, which options fit.

use super::*;

#[test]
fn parameter_counts_are_the_closed_forms() {
    let model = ModelConfig { bias: false, ..model() };
    let count = |model: &ModelConfig, options: &AttentionConfig| {
        parameter_count(&Attention::new(model, options, LENGTH, &Init::new(1, &Device::flex())).unwrap())
    };
    // 3 HD Dx + (HD)^2 for softmax, the Gaussian kernel and linear attention.
    let (d, h) = (WIDTH, 4);
    for mechanism in [Mechanism::Softmax, Mechanism::Gaussian, Mechanism::Linear] {
        assert_eq!(count(&model, &options(mechanism)), 4 * d * d, "{mechanism}");
    }
    // Two keys with half the heads, each as wide as before: 2 HD Dx + (HD)^2 / 2 + H.
    let half = ModelConfig { head_width: Some(d / h), ..model.clone() };
    for mechanism in [Mechanism::Mgk, Mechanism::Mlk] {
        let options = AttentionConfig { heads: h / 2, ..options(mechanism) };
        assert_eq!(count(&half, &options), 2 * d * d + d * d / 2 + h, "{mechanism}");
        let shifted = KeyOptions { components: 2, design: KeyDesign::Shifted };
        let shifted = AttentionConfig { keys: shifted, ..options };
        assert_eq!(count(&half, &shifted), 2 * d * d + h + d, "one projection less, H/2 shifts of 2 D more");
    }
    // (2 E + 2) D d + d E for a mixture of E heads, however many a token uses.
    for (active, head_width) in [(2, None), (3, Some(5))] {
        let moa = MoaOptions { experts: 7, active, head_width, ..Default::default() };
        let width = head_width.unwrap_or(d / active);
        let count = count(&model, &AttentionConfig { moa, ..options(Mechanism::Moa) });
        assert_eq!(count, (2 * 7 + 2) * width * d + d * 7);
    }
    // 3 (HD)^2 + 2 HD, released scores 3 (HD)^2 + 2 H HD.
    let fastformer = |sharing, scores| {
        let fastformer = FastformerOptions { sharing, scores, ..Default::default() };
        count(&model, &AttentionConfig { fastformer, ..options(Mechanism::Fastformer) })
    };
    assert_eq!(fastformer(Sharing::QueryValue, AdditiveScores::Paper), 3 * d * d + 2 * d);
    assert_eq!(fastformer(Sharing::QueryValue, AdditiveScores::Released), 3 * d * d + 2 * h * d);
    assert_eq!(fastformer(Sharing::None, AdditiveScores::Paper), 4 * d * d + 2 * d);
    let own = d / h;
    assert_eq!(fastformer(Sharing::HeadWise, AdditiveScores::Paper), d * d + 2 * own * own + 2 * own);
    // Biases: one per channel of each projection. The prior of soft-EM is no parameter.
    let biased = ModelConfig { bias: true, ..model.clone() };
    assert_eq!(count(&biased, &options(Mechanism::Softmax)), 4 * d * d + 4 * d);
    let em = MixtureOptions { inference: Inference::SoftEm, ..Default::default() };
    assert_eq!(count(&model, &AttentionConfig { mixture: em, ..options(Mechanism::Mgk) }), 5 * d * d);
}

#[test]
fn soft_em_moves_its_prior_in_training_only() {
    let em = MixtureOptions { inference: Inference::SoftEm, ..Default::default() };
    let attention = layer(&model(), &AttentionConfig { mixture: em, causal: true, ..options(Mechanism::Mgk) });
    let prior = |attention: &Attention| {
        let all = named_parameters(attention);
        all.into_iter().find(|parameter| parameter.name == "prior").unwrap().values
    };
    let before = prior(&attention);
    assert!(before.iter().all(|&p| p == 0.5));
    let padding = Some(Arc::new(Padding::from_lengths(&[7, 5], LENGTH)));
    run(&attention, &attention.mask(padding.clone()), &Context::evaluation());
    assert_eq!(prior(&attention), before);
    let first = run(&attention, &attention.mask(padding.clone()), &Context::training(0, 0));
    let after = prior(&attention);
    // Positions of one head and component: 7 are seen by a query, the others keep their prior.
    let positions = LENGTH + 2;
    for (seen, kept) in after.chunks_exact(positions).map(|row| row.split_at(7)) {
        assert!(seen.iter().all(|&p| p != 0.5 && (0.0..=1.0).contains(&p)), "{seen:?}");
        assert!(kept.iter().all(|&p| p == 0.5), "{kept:?}");
    }
    for pair in after.chunks_exact(2 * positions) {
        assert!((0..7).all(|j| (pair[j] + pair[positions + j] - 1.0).abs() < 1e-5));
    }
    let second = run(&attention, &attention.mask(padding), &Context::training(0, 1));
    assert_ne!(first["out"], second["out"], "the next pass uses the new prior");
}

#[test]
fn what_is_drawn_is_a_buffer_of_each_layer_alone() {
    let drawn = |options: &AttentionConfig, path: &str, seed: u64| {
        let init = Init::new(seed, &Device::flex()).part(path);
        let all = named_parameters(&Attention::new(&model(), options, CONTEXT, &init).unwrap());
        all.into_iter().filter(|parameter| parameter.buffer).collect::<Vec<_>>()
    };
    let smyrf = AttentionConfig { support: support(SupportKind::Smyrf), ..options(Mechanism::Scatterbrain) };
    let lsh = AttentionConfig { support: support(SupportKind::Lsh), ..options(Mechanism::Sparse) };
    let shapes = |options: &AttentionConfig| {
        let all = drawn(options, "0", 1).into_iter();
        all.map(|parameter| (parameter.name, parameter.shape)).collect::<Vec<_>>()
    };
    let width = WIDTH / 4;
    let shape = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    assert_eq!(shapes(&smyrf), [shape("projection", &[32, width]), shape("directions", &[2, width + 2])]);
    // Eleven tokens make four chunks of three, hence eight values and four columns.
    assert_eq!(shapes(&lsh), [shape("rotations", &[2, width, 4])]);
    for options in [&smyrf, &lsh] {
        assert_eq!(drawn(options, "0", 1), drawn(options, "0", 1));
        for (other, what) in [(drawn(options, "1", 1), "layer"), (drawn(options, "0", 2), "seed")] {
            for (one, other) in drawn(options, "0", 1).iter().zip(&other) {
                assert_ne!(one.values, other.values, "{} of another {what}", one.name);
            }
        }
    }
    // Queries are the keys of LSH: one projection less. A gate is one number per head.
    let count = |options: &AttentionConfig| {
        let model = ModelConfig { bias: false, ..model() };
        parameter_count(&Attention::new(&model, options, CONTEXT, &Init::new(1, &Device::flex())).unwrap())
    };
    let gated = ScatterbrainOptions { combination: Combination::Gated, ..Default::default() };
    assert_eq!(count(&smyrf), 4 * WIDTH * WIDTH);
    assert_eq!(count(&lsh), 3 * WIDTH * WIDTH);
    assert_eq!(count(&AttentionConfig { scatterbrain: gated, ..smyrf }), 4 * WIDTH * WIDTH + 4);
}

#[test]
fn a_projection_is_drawn_anew_every_so_many_updates_and_stays_for_evaluation() {
    let features = FeatureOptions { redraw: 5, ..Default::default() };
    let attention = layer(&model(), &AttentionConfig { features, ..options(Mechanism::Performer) });
    let mask = attention.mask(None);
    let projection = |attention: &Attention| {
        let all = named_parameters(attention);
        all.into_iter().find(|parameter| parameter.name == "projection").unwrap().values
    };
    let first = projection(&attention);
    let after = |step: u64| {
        run(&attention, &mask, &Context::training(0, step));
        projection(&attention)
    };
    assert_eq!(after(0), first);
    assert_eq!(after(4), first);
    let second = after(5);
    assert_ne!(second, first);
    // A draw depends on its number alone: a run that was resumed at update 14 goes on as one that was not.
    assert_eq!(after(14), after(10));
    let third = after(10);
    assert_ne!(third, second);
    let trained = run(&attention, &mask, &Context::training(0, 14))["out"].clone();
    assert_eq!(run(&attention, &mask, &Context::evaluation())["out"], trained);
    assert_eq!(projection(&attention.valid()), third);
    assert_eq!(after(5), second);
    assert_ne!(run(&attention, &mask, &Context::evaluation())["out"], trained);
    // Without it, the projection that was loaded is never touched.
    let fixed = layer(&model(), &options(Mechanism::Performer));
    let before = projection(&fixed);
    run(&fixed, &mask, &Context::training(0, 100));
    assert_eq!(projection(&fixed), before);
}

#[test]
fn a_budget_is_a_share_of_the_longest_sequence() {
    let budget = Some(Fraction::new(0.5).unwrap());
    let build = |options: &AttentionConfig, context| {
        let attention = Attention::new(&model(), options, context, &Init::new(1, &Device::flex())).unwrap();
        let Attention::Scatterbrain(layer) = &attention else { panic!("one layer for all three") };
        (layer.heads().options.support.radius, layer.heads().options.features.rows)
    };
    let options = AttentionConfig { budget, ..options(Mechanism::Scatterbrain) };
    // 100 entries: 75 for the support, 25 for features.
    assert_eq!(build(&options, 200), (37, 12));
    assert_eq!(build(&AttentionConfig { causal: true, ..options.clone() }, 200), (74, 12));
    assert_eq!(build(&AttentionConfig { mechanism: Mechanism::Performer, ..options.clone() }, 200).1, 50);
    let init = Init::new(1, &Device::flex());
    let error = Attention::new(&model(), &options, 2, &init).unwrap_err();
    assert!(matches!(error, Error::Budget { .. }), "{error}");
}

#[test]
fn half_of_each_part_is_where_a_gate_starts() {
    let device = Device::flex();
    let base = AttentionConfig { support: support(SupportKind::Local), ..options(Mechanism::Scatterbrain) };
    let forward = |options: &AttentionConfig| {
        let attention = Attention::new(&model(), options, CONTEXT, &Init::new(1, &device)).unwrap();
        let x = input(6, 2, LENGTH, &device);
        doubles(attention.forward(x.clone(), x, &attention.mask(None), &Context::evaluation(), Place::Weights))
    };
    let sparse = forward(&AttentionConfig { mechanism: Mechanism::Sparse, ..base.clone() });
    let performer = forward(&AttentionConfig { mechanism: Mechanism::Performer, ..base.clone() });
    let gated = ScatterbrainOptions { combination: Combination::Gated, ..Default::default() };
    let mean: Vec<f64> = sparse.iter().zip(&performer).map(|(a, b)| (a + b) / 2.0).collect();
    let mut report = Report::new();
    report.compare("gated", &forward(&AttentionConfig { scatterbrain: gated, ..base }), &mean, 1e-6);
    report.finish();
}

#[test]
fn a_layout_is_cut_to_shorter_batches() {
    let device = Device::flex();
    let block = AttentionConfig { support: support(SupportKind::Block), ..options(Mechanism::Sparse) };
    let attention = Attention::new(&model(), &block, CONTEXT, &Init::new(1, &device)).unwrap();
    let forward = |x: Tensor<3>| {
        doubles(attention.forward(x.clone(), x, &attention.mask(None), &Context::evaluation(), Place::Weights))
    };
    let x = input(6, 1, CONTEXT, &device);
    // Tokens 3 to 5 look at blocks 1 and 2; of the first six tokens, at block 1 alone.
    let (whole, short) = (forward(x.clone()), forward(x.clone().narrow(1, 0, 6)));
    assert_ne!(whole[3 * WIDTH..6 * WIDTH], short[3 * WIDTH..6 * WIDTH]);
    let alone =
        forward(x.clone().slice_assign([0..1, 0..3, 0..WIDTH], Tensor::zeros([1, 3, WIDTH], &device)).narrow(1, 0, 6));
    assert_eq!(alone[3 * WIDTH..6 * WIDTH], short[3 * WIDTH..6 * WIDTH]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let refused = |model: &ModelConfig, options: &AttentionConfig, part: &str| {
        let error = Attention::new(model, options, LENGTH, &Init::new(1, &Device::flex())).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let softmax = options(Mechanism::Softmax);
    refused(
        &model(),
        &AttentionConfig { heads: 5, ..softmax.clone() },
        "model.width is 24, expected a multiple of heads (5)",
    );
    refused(&model(), &AttentionConfig { heads: 0, ..softmax.clone() }, "heads");
    let moa = |moa| AttentionConfig { moa, ..options(Mechanism::Moa) };
    let crowded = MoaOptions { active: 9, ..Default::default() };
    refused(&model(), &moa(crowded), "moa.active is 9, expected at least 1 and at most moa.experts (8)");
    let uneven = MoaOptions { active: 5, ..Default::default() };
    refused(&model(), &moa(uneven.clone()), "model.width is 24, expected a multiple of moa.active (5)");
    refused(&model(), &AttentionConfig { key_value_heads: Some(2), ..moa(MoaOptions::default()) }, "share one head");
    let alibi = AttentionConfig { position: Position::Alibi, ..moa(MoaOptions::default()) };
    refused(&model(), &alibi, "'alibi' with moa");
    let wide = MoaOptions { head_width: Some(4), ..uneven };
    assert!(Attention::new(&model(), &moa(wide), LENGTH, &Init::new(1, &Device::flex())).is_ok());
    let odd = ModelConfig { head_width: Some(5), ..model() };
    refused(&odd, &AttentionConfig { position: Position::Rotary, ..softmax }, "even");
    refused(&odd, &options(Mechanism::Fastformer), "head_width");
    let rotary = AttentionConfig { position: Position::Rotary, ..options(Mechanism::Fastformer) };
    refused(&model(), &rotary, "rotary");
    let variances = MixtureOptions { variances: Variances::List(vec![1.0]), ..Default::default() };
    refused(&model(), &AttentionConfig { mixture: variances, ..options(Mechanism::Mgk) }, "variances");
    let mut block = AttentionConfig { support: support(SupportKind::Block), ..options(Mechanism::Sparse) };
    block.support.block = 2;
    refused(&model(), &block, "support.layout is 4 x 4 blocks of 2, expected at least 5 x 5");
    let lsh = AttentionConfig { support: support(SupportKind::Lsh), ..options(Mechanism::Sparse) };
    refused(
        &model(),
        &AttentionConfig { key_value_heads: Some(2), ..lsh.clone() },
        "with LSH the queries are the keys",
    );
    assert!(!reads_second_sequence(&lsh));
}
