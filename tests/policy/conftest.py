from hypothesis import settings

# Shared cores make single examples slow now and then; what is checked is the property.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
