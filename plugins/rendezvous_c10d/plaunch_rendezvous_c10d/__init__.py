"""The `c10d` rendezvous backend: the job's state in torch's own TCPStore, or in a file.

Nothing here imports torch before the backend is selected and its handler is created.
"""

from plaunch_rendezvous_c10d.backend import create_c10d_handler as create_c10d_handler
from plaunch_rendezvous_c10d.backend import prepare_backend as prepare_backend
from plaunch_rendezvous_c10d.torch_stores import FileStore as FileStore
from plaunch_rendezvous_c10d.torch_stores import TcpStore as TcpStore
