"""A trial that does nothing, under Hydra's --multirun."""
import hydra


@hydra.main(version_base=None, config_path=None)
def main(config):
    import torch  # noqa: F401  as a training script would

    return 0.0


if __name__ == "__main__":
    main()
