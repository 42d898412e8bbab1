def a():
    c
    cfg.modf b(f a():
   ():
    c
    cg.modf b(f  c
    cg.modf b(a():
    c
    cfg.mf()ff a():
    c
    cfg.mf()f b(L")
