collector = Collector(..., replay_buffer=rb)
collector.start()
time.sleep(10)
for i in range(optim_steps):
    data = rb.sample()
