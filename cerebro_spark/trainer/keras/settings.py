"""The settings of Keras that hold for a whole process. Trials share the graphs that were traced with them."""

from __future__ import annotations

import keras

from cerebro_spark.trainer.sharing.process_settings import SettingTable

KERAS_SETTINGS: SettingTable = {
    "keras.config.floatx": (keras.config.floatx, keras.config.set_floatx),
    "keras.config.epsilon": (keras.config.epsilon, keras.config.set_epsilon),
    "keras.config.image_data_format": (keras.config.image_data_format, keras.config.set_image_data_format),
}
