"""The process that makes the forecasts of one run: `python -m cerebro_spark.forecast NICE`, started by its driver."""

from __future__ import annotations

import sys

from cerebro_spark.forecast.process import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
