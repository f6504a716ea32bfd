"""The site files that ship with hpc-train; imported as hpc_train.site_configs, read by hpc_train.site.loader."""
