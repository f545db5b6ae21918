assert data.names[-1] == "time"
