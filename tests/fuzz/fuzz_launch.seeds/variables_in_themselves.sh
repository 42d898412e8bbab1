A=${B:@-öÿÿÿ}"}
ARGS=( --${fp9SEQ:-40moe_act96} \
ÛàSEQ:-4096} \
àÛ÷s moA=${B:-"${A=wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww${B:-"${C}"}
ARGSS\EQ:-4096} :-4096} \
àÛ÷s$moA=${B:-ýÿÿÿ"SSEQ:-4096ÿÿÿÿÿÿÿÿÿÿÿ{t$=A-:-.