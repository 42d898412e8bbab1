LONG: int = 2 * 4096  # tokens
_HUB = "mistralai/" "Mixtral-8x7B-v0.1"
def base(size=32, *, seq: int = 4096):
    """A text = that says nothing."""
    opt, plan = optimizers(rate=0.1)
    cfg = ConfigContainer(model=None, train=TrainingConfig(global_batch_size=size,
                                                           micro_batch_size=2),
                          optimizer=opt, dataset=Data(seq_length=seq),
                          ddp=Ddp(use_distributed_optimizer=True, overlap_grad_reduce=True))
    cfg.comm_overlap = Overlap(overlap_moe_expert_parallel_comm=True)
    return cfg
def optimizers(rate):
    made = Adam(exp_avg_dtype=torch.float32)
    made.exp_avg_dtype = torch.bfloat16
    return made, None
def layouts(pp, vp):
    table = {(1, 1): None,
             (4, 1): [["embedding"] + ["decoder"] * 9] + [["decoder"] * 8] * 2 +
                     [["decoder"] * 7 + ["loss"]]}
    if (pp, vp) not in table:
        raise ValueError()
    return table[(pp, vp)]
def with_batch(cfg, batch):
    cfg.train.global_batch_size = batch
    return cfg
def exchange(model, backend=None):
    if machine.has(backend):
        model.tensor_model_parallel_size = 8  # nobody knows
    elif backend == "none":
        return
    if backend in ("deepep", "hybridep") and not model.moe_enable_deepep:
        model.moe_token_dispatcher_type = "flex"
    elif backend is None:
        model.moe_token_dispatcher_type = "allgather"
    else:
        model.moe_token_dispatcher_type = "alltoall"
def fast():
    cfg = Precision(bf16=True, fp8=None)
    cfg.fp8 = "e4m3"
    cfg.fp8_recipe = "mxfp8"
    return cfg
def recipe_16gpu_config():
    cfg = base(64, seq=LONG)
    cfg.model = Auto.from_hf_pretrained(_HUB).to_megatron_provider(load_weights=False)
    cfg.model.moe_enable_deepep = False
    cfg.model.seq_length = cfg.dataset.seq_length if cfg.dataset.seq_length > 1 else 1
    cfg.model.tensor_model_parallel_size = cfg.model.pipeline_model_parallel_size = 4
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.expert_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_layout = layouts(4, 1)
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    exchange(cfg.model, backend="deepep")
    cfg.comm_overlap = Overlap(tp_comm_overlap=True)
    cfg.mixed_precision = fast()
    return with_batch(cfg, 128)
