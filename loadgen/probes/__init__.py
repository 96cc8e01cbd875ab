"""What looks: one probe a file. A probe emits readings, spans and marks and changes nothing."""
