"""The help of flags that several commands take."""

MACHINE = {
    "gpu": "kind of GPU, or any of a set: A100:1,A100-80GB:1,H100:1",
    "num-gpus": "GPUs of each pod",
    "all-configs": "any number of GPUs, whatever --num-gpus and the set say",
    "cpus": "at least so many: 16 or 16+",
    "memory": "at least so many GB: 128 or 128+",
    "disk-size": "at least so many GB: 100 or 100+",
    "country": "two letters: NL",
    "city": "where the machine stands",
    "cloud": "whose machine, or which tier: hyperstack, SECURE",
    "region": "as the vendor spells it: canada-1",
    "instance-type": "as the vendor spells it: B200x8",
    "min-upload-mbps": "measured upload, megabits per second",
    "min-download-mbps": "measured download, megabits per second",
    "use-spot": "machines that may be taken away, which cost less",
    "max-price": "US dollars per hour of the whole machine",
    "network": "best: made for traffic between machines (InfiniBand and the like); no vendor tells that of its offers "
    "today, so that none matches",
    "volume": "id of a vendor's volume, which the pod gets: only machines that can have it",
}  # what kind of machine is wanted

RL = {
    "task": "rl: what is learnt, instead of the profile's: sort, gsm8k, math, mbpp, a .jsonl of question and answer, "
    "or weights such as sort=1,gsm8k=3",
    "problems": "rl: folder with the files of gsm8k, math or mbpp, instead of the hub",
    "reward": "rl: Python file with reward(question, answer, completion), instead of the task's own",
    "rl": "rl: settings, comma-separated: loss=grpo,group=16,beta=0.04,max_new=512",
    "unsafe-rewards": "rl: run the code of mbpp's answers although nothing here can lock it in",
}  # how reinforcement learning goes

MIXTURE = (
    "conversations of mid and sft and their weights, instead of the profile's: "
    "identity=0.3,talk.jsonl=0.5,hf://user/name/config:train[:1000]=0.2"
)
