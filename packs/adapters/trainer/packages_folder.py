"""Print the folder of the packages of this environment: `python -m packs.adapters.trainer.packages_folder`."""

import sysconfig

print(sysconfig.get_path("purelib"))
