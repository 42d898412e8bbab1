"""References of models that transformers' script of references does not make: qwen3_next with layers of attention alone (gates of each
channel), step3p5 (gates of each head; transformers has it inside step3p7) and step3_text (queries of low rank beside one head of keys;
written here after StepFun's published model file, since transformers has none).

  make_gated.py MAKE_REFERENCES OUT [--check]

MAKE_REFERENCES is the script that made the other cases of this folder. Made with transformers 5.24, torch 2.15, float32, one thread.
--check compares with float64 made from the same weights: losses of all steps 1e-6, the gradient's norm 1e-5."""
import copy, json, math, os, runpy, sys
import torch
from torch import nn
import torch.nn.functional as F
from safetensors.torch import save_file, load_file

ns = runpy.run_path(sys.argv[1], run_name='lib')
out, checks = sys.argv[2], '--check' in sys.argv
base = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, vocab_size=256, max_position_embeddings=512,
            tie_word_embeddings=False, use_cache=False, attention_dropout=0.0, pad_token_id=None, bos_token_id=None, eos_token_id=None)


class Out:
    def __init__(self, logits, router_logits=()):
        self.logits, self.router_logits = logits, router_logits


class Qwen3Next(nn.Module):
    config = dict(base, model_type='qwen3_next', head_dim=16, intermediate_size=48, moe_intermediate_size=16,
                  shared_expert_intermediate_size=24, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
                  mlp_only_layers=[], layer_types=['full_attention'] * 3, linear_num_key_heads=2, linear_key_head_dim=8,
                  linear_num_value_heads=4, linear_value_head_dim=8, num_nextn_predict_layers=0, rms_norm_eps=1e-6,
                  rope_parameters=dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=0.25), output_router_logits=True,
                  router_aux_loss_coef=0.001)
    zero_centred = True

    def __init__(self):
        super().__init__()
        from transformers import AutoModelForCausalLM
        cfg = ns['configuration'](self.config)
        inner = AutoModelForCausalLM.from_config(cfg)
        inner.set_experts_implementation('eager')
        self.model, self.lm_head, self.cfg, self.whole = inner.model, inner.lm_head, cfg, [inner]

    def forward(self, ids):
        o = self.whole[0](input_ids=ids)
        return Out(o.logits, o.router_logits)

    def named(self, state):
        """experts stand in one tensor: [E, 2f, h] gate rows first, [E, h, f]"""
        got = {}
        for n, x in state.items():
            if n.endswith('experts.gate_up_proj'):
                for i, e in enumerate(x):
                    g, u = e.chunk(2, 0)
                    got[n.replace('gate_up_proj', f'{i}.gate_proj.weight')], got[n.replace('gate_up_proj', f'{i}.up_proj.weight')] = g, u
            elif n.endswith('experts.down_proj'):
                got.update({n.replace('down_proj', f'{i}.down_proj.weight'): e for i, e in enumerate(x)})
            else:
                got[n] = x
        return got

    def public(self):
        return dict(self.config, architectures=['Qwen3NextForCausalLM'])


class Step35(Qwen3Next):
    """layer 0 full, dense; window layers with six heads; a rotary share and base of each kind"""
    config = dict(base, model_type='step3p5', head_dim=8, intermediate_size=48, moe_intermediate_size=16, n_routed_experts=8,
                  num_experts_per_tok=3, share_expert_dim=16, num_sliding_attention_heads=6, sliding_window=16,
                  layer_types=['full_attention', 'sliding_attention', 'sliding_attention'], mlp_layer_types=['dense', 'sparse', 'sparse'],
                  moe_router_scaling_factor=3.0, rms_norm_eps=1e-5, num_nextn_predict_layers=0,
                  rope_parameters={'full_attention': dict(rope_type='default', rope_theta=5e6, partial_rotary_factor=0.5),
                                   'sliding_attention': dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=1.0)})

    def __init__(self):
        nn.Module.__init__(self)
        from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel, Step3p7TextConfig
        kw = {k: v for k, v in self.config.items() if k not in ('model_type', 'pad_token_id')}
        cfg = Step3p7TextConfig(**kw)
        cfg._attn_implementation = 'eager'
        cfg._experts_implementation = 'eager'
        self.cfg, self.model = cfg, Step3p7TextModel(cfg)
        self.model.embed_tokens.padding_idx = None
        self.lm_head = nn.Linear(32, 256, bias=False)

    def forward(self, ids):
        return Out(self.lm_head(self.model(input_ids=ids).last_hidden_state))

    def named(self, state):
        """as StepFun names them: layers with experts have `moe` and `share_expert` in place of `mlp`"""
        got = {}
        for n, x in super().named(state).items():
            n = n.replace('mlp.experts.', 'moe.experts.').replace('mlp.shared_experts.', 'share_expert.').replace('mlp.gate.weight', 'moe.gate.weight')
            got[n.replace('mlp.gate.e_score_correction_bias', 'moe.router_bias')] = x
        return got

    def public(self):
        c = self.config
        keep = {k: c[k] for k in base if k in c} | {k: c[k] for k in ('head_dim', 'intermediate_size', 'moe_intermediate_size', 'layer_types',
                'sliding_window', 'rms_norm_eps', 'share_expert_dim', 'moe_router_scaling_factor', 'num_nextn_predict_layers', 'model_type')}
        keep.pop('num_key_value_heads')
        return dict(keep, architectures=['Step3p5ForCausalLM'], num_attention_groups=2, moe_num_experts=8, moe_top_k=3, moe_layers_enum='1,2',
                    attention_other_setting=dict(num_attention_heads=6, num_attention_groups=2), partial_rotary_factors=[0.5, 1.0, 1.0],
                    rope_theta=[5e6, 1e4, 1e4], moe_router_activation='sigmoid', norm_expert_weight=True, use_head_wise_attn_gate=True,
                    use_moe_router_bias=True, use_qk_norm=True)


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Mlp(nn.Module):
    def __init__(self, h, f):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False), nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MultiMatrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.inter_norm, self.wq = nn.Linear(32, 24, bias=False), Norm(24), nn.Linear(24, 64, bias=False)
        self.k_proj, self.v_proj, self.o_proj = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        q = self.wq(self.inter_norm(self.q_proj(x))).view(b, s, 4, 16).transpose(1, 2)
        k, v = self.k_proj(x)[:, None], self.v_proj(x)[:, None]
        a = torch.arange(s, dtype=x.dtype)[:, None] / 5e5 ** (torch.arange(0, 16, 2, dtype=x.dtype) / 16)
        c, n = torch.cat([a, a], -1).cos(), torch.cat([a, a], -1).sin()
        turn = lambda y: y * c + torch.cat([-y[..., 8:], y[..., :8]], -1) * n
        p = turn(q) @ turn(k).transpose(-1, -2) / 4.0
        p = p.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float('-inf')).softmax(-1)
        return self.o_proj((p @ v).transpose(1, 2).reshape(b, s, 64))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 8, bias=False), nn.ModuleList([Mlp(32, 16) for _ in range(8)])

    def forward(self, x):
        p, i = self.gate(x).softmax(-1).topk(3, -1)
        p = p / p.sum(-1, keepdim=True)
        return sum(e(x) * (p * (i == k)).sum(-1, keepdim=True) for k, e in enumerate(self.experts))


class Layer(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm, self.self_attn = Norm(32), Norm(32), MultiMatrix()
        if experts:
            self.moe, self.share_expert = Experts(), Mlp(32, 16)
        else:
            self.mlp = Mlp(32, 48)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + (self.mlp(y) if hasattr(self, 'mlp') else self.moe(y) + self.share_expert(y))


class Step3(Step35):
    zero_centred = False

    def __init__(self):
        nn.Module.__init__(self)
        self.cfg = type('C', (), dict(num_experts_per_tok=3, tie_word_embeddings=False, model_type='step3_text'))
        self.model = nn.Module()
        self.model.embed_tokens, self.model.norm = nn.Embedding(256, 32), Norm(32)
        self.model.layers = nn.ModuleList([Layer(i > 0) for i in range(3)])
        self.lm_head = nn.Linear(32, 256, bias=False)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for l in self.model.layers:
            x = l(x)
        return Out(self.lm_head(self.model.norm(x)))

    def named(self, state):
        return state

    def public(self):
        return dict(architectures=['Step3TextForCausalLM'], model_type='step3_text', hidden_size=32, intermediate_size=48,
                    num_attention_heads=4, num_attention_groups=1, head_dim=16, num_hidden_layers=3, vocab_size=256, share_q_dim=24,
                    max_position_embeddings=512, moe_intermediate_size=16, moe_num_experts=8, moe_top_k=3, moe_layers_enum='1,2',
                    norm_expert_weight=True, share_expert_dim=16, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False)


def start(kind, name):
    torch.manual_seed(sum(map(ord, name)))
    m = kind().to(torch.float32)
    with torch.no_grad():
        for n, p in m.named_parameters():
            if p.dim() >= 2:
                p.normal_(0, 0.05)
            elif 'norm' in n:
                p.copy_((0.0 if kind.zero_centred else 1.0) + 0.1 * torch.randn_like(p))
            else:
                p.normal_(0, 0.05)
        for n, b in m.named_buffers():
            if 'correction_bias' in n:
                b.copy_(0.05 * torch.randn_like(b))
    return m


def run(m, batch):
    o = m(batch[:, :-1])
    lm = F.cross_entropy(o.logits.reshape(-1, 256), batch[:, 1:].reshape(-1))
    aux, k = [], m.cfg.num_experts_per_tok
    for rl in o.router_logits or ():
        p = torch.softmax(rl, -1)
        t, e = p.shape
        count = torch.zeros(e, dtype=p.dtype).scatter_add_(0, p.topk(k, -1).indices.reshape(-1), torch.ones(t * k, dtype=p.dtype))
        aux.append(e / (k * t * t) * (count * p.sum(0)).sum())
    return o.logits, lm, aux


def walk(m, batches, c):
    begin, rows = copy.deepcopy(m.state_dict()), []
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False, fused=False)
    for b in batches:
        opt.zero_grad()
        _, l, x = run(m, b)
        (l + c * sum(x) if c and x else l).backward()
        n = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        rows.append(dict(lm_loss=l.item(), aux_sum=sum(x).item() if x else 0.0, grad_norm=float(n)))
    m.load_state_dict(begin)
    m.zero_grad()
    return rows


def everything(m, batches):
    lg, lm, ax = run(m, batches[0])
    lm.backward()
    grads = {n: (p.grad if p.grad is not None else torch.zeros_like(p)).clone() for n, p in m.named_parameters()}
    m.zero_grad()
    coef = 0.001 if ax else 0.0
    both = walk(m, batches, coef) if ax else None
    return lg.detach(), lm.item(), [x.item() for x in ax], grads, walk(m, batches, 0.0), both, coef


def norm_of(grads):
    return math.sqrt(sum(float(x.double().pow(2).sum()) for x in grads.values()))


for name, kind in (('qwen3_next', Qwen3Next), ('step3p5', Step35), ('step3_text', Step3)):
    d = f'{out}/{name}'
    os.makedirs(d, exist_ok=True)
    stream, batches = ns['data']()
    m = start(kind, name)
    lg, lm, ax, grads, lm_only, both, coef = everything(m, batches)
    if checks:
        with ns['Double']():
            x = copy.deepcopy(m).double()
            for mod in x.modules():
                if hasattr(mod, 'compute_default_rope_parameters'):
                    if hasattr(mod, 'inv_freq'):
                        mod.inv_freq = mod.compute_default_rope_parameters(mod.config)[0].double()
                    for t in ('full_attention', 'sliding_attention'):
                        if hasattr(mod, t + '_inv_freq'):
                            setattr(mod, t + '_inv_freq', mod.compute_default_rope_parameters(mod.config, layer_type=t)[0].double())
            e = everything(x, batches)
        off = lambda q: max(abs(a[q] / b[q] - 1) for p, r in ((lm_only, e[4]), (both or [], e[5] or [])) for a, b in zip(p, r))
        g = math.sqrt(sum(float((grads[n].double() - e[3][n].double()).pow(2).sum()) for n in grads)) / norm_of(e[3])
        print(name, f'loss {off("lm_loss"):.1e} norm {off("grad_norm"):.1e} gradient {g:.1e}', 'ok' if off('lm_loss') < 1e-6 and off('grad_norm') < 1e-5 and g < 1e-5 else 'DIFFERS')
        continue
    state = m.named({k: v for k, v in m.state_dict().items() if 'rotary_emb' not in k})
    save_file({k: v.clone().contiguous() for k, v in state.items()}, d + '/model.safetensors')
    gs = m.named({k: grads.get(k, torch.zeros_like(v)) for k, v in m.state_dict().items() if 'rotary_emb' not in k})
    save_file({k: v.clone().contiguous() for k, v in gs.items()}, d + '/gradients.safetensors')
    save_file({'tokens': stream.to(torch.int32).contiguous(), 'logits': lg.contiguous()}, d + '/batch.safetensors')
    with open(d + '/config.json', 'w') as f:
        json.dump(m.public(), f, indent=2, sort_keys=True)
        f.write('\n')
    with open(d + '/tensors.txt', 'w') as f:
        for k in sorted(state):
            r = list(state[k].shape) + [1]
            f.write(f'{k} {r[0]} {r[1]}\n')
    with open(d + '/expected.json', 'w') as f:
        json.dump(dict(family=name, torch=torch.__version__, batch=4, seq=64, lm_loss=lm, aux_per_layer=ax, aux_coef=coef, grad_norm_lm_only=norm_of(grads),
                       adamw=dict(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip=1.0, decay='every parameter', steps=10,
                                  lm_only=lm_only, lm_plus_coef_times_sum_of_layers_aux=both)), f, indent=1)
        f.write('\n')
    print(name, 'loss', lm, 'norm', norm_of(grads), 'last', lm_only[-1])
