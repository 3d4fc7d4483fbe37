"""What tests do to models, data sets and stores."""
