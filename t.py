import torch, time
torch.set_num_threads(2)
def t(f,n=20):
    for _ in range(3): f()
    s=time.perf_counter()
    for _ in range(n): f()
    return (time.perf_counter()-s)/n*1e3
for dt in (torch.bfloat16, torch.float32):
  for K,N in ((576,576),(576,1536),(1536,576),(576,49152)):
    w=torch.randn(N,K).to(dt)
    print(dt,K,N,[ (m, round(t(lambda: torch.nn.functional.linear(x,w)),3)) for m in (1,2,4,8,16,32,64,256) for x in [torch.randn(m,K).to(dt)]])
